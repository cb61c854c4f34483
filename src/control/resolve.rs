//! Host names to addresses, off the threads that must not wait.
