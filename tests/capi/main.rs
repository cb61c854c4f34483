//! The C ABI from outside: the header as compilers see it, the library as the linker sees it, C programs.

mod abi;
mod elf;
mod header;
mod manners;
mod programs;
mod toolchain;
