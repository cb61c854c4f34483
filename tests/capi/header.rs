//! `include/p2pkv.h`: fresh, self-contained, complete.

use std::collections::BTreeSet;
use std::fs;

use crate::elf::listed_symbols;
use crate::toolchain::{compilers, root, scratch, succeed};

const GENERATED: &str = include_str!(concat!(env!("OUT_DIR"), "/p2pkv.h"));

#[test]
fn the_committed_header_is_the_generated_one() {
    let committed = fs::read_to_string(root().join("include/p2pkv.h")).unwrap_or_default();
    assert!(
        committed == GENERATED,
        "include/p2pkv.h is not what src/capi/ gives. Run `make header` (P2PKV_WRITE_HEADER=1 cargo build) and \
         commit the result"
    );
}

#[test]
fn the_header_stands_alone_and_may_come_twice_in_every_language() {
    let folder = scratch("header_alone");
    let source = folder.join("twice.c");
    // A second meaning for each common word shows that no macro or type of ours takes it.
    let text = "#include \"p2pkv.h\"\n#include \"p2pkv.h\"\nint OK, BUSY, tier, lookup, status, size, BUG;\n\
                p2p_status first(void);\np2p_status first(void) { return P2P_STATUS_OK; }\n";
    fs::write(&source, text).unwrap();
    for compiler in compilers() {
        succeed(compiler.start().arg("-fsyntax-only").arg(&source));
    }
}

#[test]
fn nothing_of_the_interface_is_behind_a_condition() {
    let allowed = [
        "#ifndef P2P_P2PKV_H",
        "#ifdef __cplusplus",
        "#ifndef __cplusplus",
        "#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L",
        "#if __STDC_VERSION__ >= 202311L",
    ];
    for line in GENERATED.lines().filter(|line| line.starts_with("#if")) {
        assert!(allowed.contains(&line), "{line}");
    }
}

/// Doc comment and declaration of each function.
fn functions() -> Vec<(String, String)> {
    let after = GENERATED.split("extern \"C\" {\n").nth(1).unwrap();
    let mut functions = Vec::new();
    for piece in after.split("/**\n").skip(1) {
        let (doc, declaration) = piece.split_once("*/\n").unwrap();
        functions.push((doc.to_owned(), declaration.split(';').next().unwrap().to_owned()));
    }
    functions
}

fn name_in(declaration: &str) -> &str {
    let head = declaration.split('(').next().unwrap();
    head.rsplit([' ', '*']).next().unwrap()
}

#[test]
fn the_header_declares_exactly_what_is_exported() {
    let functions = functions();
    let declared: BTreeSet<&str> = functions.iter().map(|(_, declaration)| name_in(declaration)).collect();
    let listed = listed_symbols();
    assert_eq!(declared, listed.iter().map(String::as_str).collect());
}

#[test]
fn every_function_says_what_it_returns_who_owns_what_and_from_which_threads() {
    for (doc, declaration) in functions() {
        let name = name_in(&declaration);
        let has = |what: &str| assert!(doc.contains(what), "{name} has no {what:?}");
        has("Threads: ");
        has("Since: ");
        if !declaration.starts_with("void ") {
            has("Returns:");
        }
        let parameters = declaration.split_once('(').unwrap().1;
        if !parameters.starts_with("void)") {
            has("Parameters:");
        }
        for status in doc.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()) {
            if status.starts_with("P2P_") && !status.ends_with('_') {
                assert!(GENERATED.matches(status).count() > 1, "{name} names {status}, which is nothing");
            }
        }
    }
}

#[test]
fn the_header_says_in_bold_that_the_region_outlives_the_tier() {
    assert!(GENERATED.contains("**The region must outlive the tier.**"));
}

#[test]
fn functions_on_a_tier_take_a_const_handle_but_for_free() {
    for (_, declaration) in functions() {
        if declaration.contains("p2p_tier *tier") {
            let is_const = declaration.contains("const struct p2p_tier *tier");
            assert_eq!(is_const, name_in(&declaration) != "p2p_tier_free", "{declaration}");
        }
    }
}
