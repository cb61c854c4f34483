//! The protocol core knows no socket, thread, clock or transport.

use std::path::{Path, PathBuf};

/// What stands for the world outside. Paths as the code would write them.
const IMPURE: [&str; 22] = [
    "std::net",
    "std::thread",
    "std::fs",
    "std::io",
    "std::os",
    "std::process",
    "std::env",
    "std::sync::Mutex",
    "std::sync::Condvar",
    "std::sync::mpsc",
    "Instant",
    "SystemTime",
    "zmq",
    "mio::",
    "rustix",
    "socket2",
    "libc::",
    "crossbeam",
    "getrandom",
    "crate::tier",
    "crate::control",
    "crate::data",
];

/// Tables whose order differs from run to run.
const UNORDERED: [&str; 3] = ["std::collections::HashMap", "std::collections::HashSet", "RandomState"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code without its comments and its unit tests.
fn code(text: &str) -> String {
    let until_tests = text.split("#[cfg(test)]").next().unwrap_or_default();
    until_tests.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn offences(words: &[&str]) -> Vec<String> {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocol"), &mut files);
    assert!(files.len() > 20, "{files:?}");
    let mut offences = Vec::new();
    for file in files {
        let code = code(&std::fs::read_to_string(&file).unwrap());
        let uses = words.iter().filter(|word| code.contains(**word));
        offences.extend(uses.map(|word| format!("{}: {word}", file.display())));
    }
    offences
}

#[test]
fn the_protocol_imports_nothing_of_the_world_outside() {
    assert_eq!(offences(&IMPURE), Vec::<String>::new());
}

#[test]
fn the_protocol_uses_no_table_with_an_order_of_its_own() {
    assert_eq!(offences(&UNORDERED), Vec::<String>::new());
}

#[test]
fn groups_of_imports_hide_nothing() {
    // `use std::{net, thread}` would escape the scan above.
    assert_eq!(offences(&["use std::{", "use core::{", "use crate::{"]), Vec::<String>::new());
}
