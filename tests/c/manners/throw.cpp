// What a C program cannot do by itself.
extern "C" void throw_exception() { throw 42; }
