"""The tier `wasm`: CPython compiled to WebAssembly, a fresh instance per call; needs the extra `astra-jax[wasm]`."""
