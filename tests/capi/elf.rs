//! The shared library as the linker sees it.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::toolchain::{root, shared_library, succeed};

/// include/p2pkv.symbols: what the library exports, a name a line.
pub fn listed_symbols() -> BTreeSet<String> {
    let list = fs::read_to_string(root().join("include/p2pkv.symbols")).unwrap();
    list.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn only_the_listed_symbols_are_exported() {
    let output = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(shared_library()));
    let exported: BTreeSet<String> =
        output.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect();
    let listed = listed_symbols();
    assert!(
        exported == listed,
        "exported and not in include/p2pkv.symbols: {:?}; listed and not exported: {:?}",
        exported.difference(&listed),
        listed.difference(&exported)
    );
    assert!(listed.iter().all(|name| name.starts_with("p2p_")));
}

#[test]
fn the_soname_is_versioned_and_the_library_stays_loaded() {
    let dynamic = succeed(Command::new("readelf").args(["-d", "-W"]).arg(shared_library()));
    assert!(dynamic.contains("Library soname: [libp2pkv.so.0]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn libzmq_is_inside_and_not_asked_for() {
    let dynamic = succeed(Command::new("readelf").args(["-d", "-W"]).arg(shared_library()));
    assert!(!dynamic.contains("libzmq"), "{dynamic}");
}
