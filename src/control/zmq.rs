//! The control transport over ZeroMQ; the only file that names zmq.
