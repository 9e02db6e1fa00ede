//! The CPU backend: the oracle that other backends are compared with, and the default where there is no GPU.
