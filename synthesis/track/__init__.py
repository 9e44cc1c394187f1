"""What both tracks share.

seeds         every draw has its own
fingerprint   what decides the records: config, inputs, teacher, source, prompts
journal       finished items, so that a killed run goes on
metering      what the replies of one item cost
run           what is already there, the journals, and the records at the end
"""
