//! How the library behaves inside somebody else's process: C hosts of tests/c/manners.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::toolchain::{
    bounded, link_shared, link_with, link_without, root, scratch, shared_library, succeed,
};

/// Builds tests/c/manners/`name`.c.
fn host(name: &str) -> PathBuf {
    link_shared(&format!("manners/{name}.c"), &scratch(&format!("manners_{name}")))
}

/// A Rust library with a logger of its own and functions that panic; cargo builds it with the tests.
fn plugin() -> PathBuf {
    let test = env::current_exe().unwrap();
    let plugin = test.parent().unwrap().with_file_name("examples").join("libmanners_plugin.so");
    assert!(
        plugin.is_file(),
        "{} is not there; with a filter on targets, build it by cargo build --example manners_plugin",
        plugin.display()
    );
    plugin
}

#[test]
fn forked_children_exit_exec_and_open_tiers_while_the_parent_carries_on() {
    succeed(&mut bounded(&host("fork")));
}

#[test]
fn the_library_is_loaded_and_let_go_a_hundred_times_and_two_copies_pull_from_one_another() {
    let folder = scratch("manners_dlopen");
    let program = link_without("manners/dlopen.c", &folder);
    let copy = folder.join("copy.so");
    fs::copy(shared_library(), &copy).unwrap();
    succeed(bounded(&program).arg(shared_library()).arg(copy));
}

#[test]
fn signals_stay_the_hosts() {
    succeed(&mut bounded(&host("signals")));
}

#[test]
fn what_belongs_to_the_process_is_as_it_was_and_nothing_is_printed() {
    succeed(&mut bounded(&host("quiet")));
}

#[test]
fn a_host_ends_by_its_own_code_whichever_way_it_goes() {
    succeed(&mut bounded(&host("exit")));
}

#[test]
fn small_cancelled_and_ending_threads_are_fine_and_the_librarys_are_few_and_named() {
    succeed(&mut bounded(&host("threads")));
}

#[test]
fn shortages_are_named_and_leave_nothing_behind() {
    succeed(&mut bounded(&host("shortage")));
}

#[test]
fn another_rust_library_logs_beside_ours() {
    succeed(bounded(&host("beside_rust")).arg(plugin()));
}

#[test]
fn a_callback_that_does_not_return_ends_the_process_by_name() {
    let folder = scratch("manners_unwind");
    let thrower = folder.join("throw.o");
    let mut compile = Command::new("g++");
    compile.arg("-c").arg(root().join("tests/c/manners/throw.cpp")).arg("-o").arg(&thrower);
    succeed(&mut compile);
    let program = link_with("manners/unwind.c", &folder, &[&thrower, Path::new("-lstdc++")]);
    succeed(bounded(&program).arg(plugin()));
}
