//! C programs of tests/c, linked and run.

use std::fs;

use crate::elf::listed_symbols;
use crate::toolchain::{bounded, link_shared, link_static, root, scratch, succeed};

#[test]
fn every_null_is_refused_by_name() {
    let program = link_shared("nulls.c", &scratch("nulls"));
    succeed(&mut bounded(&program));
}

#[test]
fn the_program_of_nulls_calls_every_function() {
    let source = fs::read_to_string(root().join("tests/c/nulls.c")).unwrap();
    for name in listed_symbols() {
        let is_called = source.contains(&format!("{name}(")) || source.contains(&format!("REFUSED({name},"));
        assert!(is_called, "tests/c/nulls.c does not call {name}");
    }
}

#[test]
fn a_tier_lives_from_config_to_free() {
    let program = link_shared("lifecycle.c", &scratch("lifecycle"));
    succeed(&mut bounded(&program));
}

#[test]
fn the_static_library_links_and_works_too() {
    let program = link_static("lifecycle.c", &scratch("static"));
    succeed(&mut bounded(&program));
}

#[test]
fn a_forked_child_can_only_abandon_its_parents_handles() {
    let program = link_shared("fork.c", &scratch("fork"));
    succeed(&mut bounded(&program));
}

#[test]
fn threads_have_their_own_last_error() {
    let program = link_shared("last_error.c", &scratch("last_error"));
    succeed(&mut bounded(&program));
}

#[test]
fn environment_variables_stand_behind_the_config() {
    let program = link_shared("environment.c", &scratch("environment"));
    let with = |variable: &str, value: &str| succeed(bounded(&program).env(variable, value));
    for (variable, value) in [
        ("P2PKV_PORT", "70000"),
        ("P2PKV_MAX_PEERS", "many"),
        ("P2PKV_IDLE_TIMEOUT_S", "-3"),
        ("P2PKV_LOG", "loud"),
    ] {
        let said = with(variable, value);
        assert!(said.contains(variable) && said.contains(value), "{said}");
    }
    assert_eq!(with("P2PKV_LOG", "warn,p2pkv=debug"), "fine\n");
}

#[test]
fn nixl_leaves_the_hosts_signals_and_its_exit_alone_and_sleeps_when_idle() {
    let program = link_shared("nixl.c", &scratch("nixl"));
    let said = succeed(&mut bounded(&program));
    assert!(said == "fine\n" || said.starts_with("no nixl: "), "{said}");
}

#[test]
fn a_missing_nixl_is_reported_with_the_places_that_were_tried() {
    let program = link_shared("nixl.c", &scratch("no_nixl"));
    let mut alone = bounded(&program);
    for variable in ["VIRTUAL_ENV", "HOME"] {
        alone.env(variable, "/nonexistent");
    }
    let said = succeed(alone.env("P2PKV_NIXL_LIBRARY_DIR", "/nonexistent/nixl"));
    // Where the system itself has NIXL, it is found all the same.
    if said != "fine\n" {
        assert!(
            said.contains("/nonexistent/nixl/libnixl_capi.so") || said.contains("cargo feature nixl"),
            "{said}"
        );
    }
}
