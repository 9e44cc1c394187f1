"""What answers a question: `final_answer` reads the message that ends an episode; `records` says what is solved."""
