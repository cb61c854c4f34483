//! How the library behaves inside somebody else's process: C hosts of tests/c/manners.

use crate::toolchain::{bounded, link_shared, scratch, succeed};

/// Builds tests/c/manners/`name`.c and runs it to a good end.
fn host(name: &str) -> String {
    succeed(&mut bounded(&link_shared(&format!("manners/{name}.c"), &scratch(&format!("manners_{name}")))))
}

#[test]
fn forked_children_exit_exec_and_open_tiers_while_the_parent_carries_on() {
    host("fork");
}
