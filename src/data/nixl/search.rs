//! Where NIXL's C library may be, without running Python: what `pip install nixl-cu12` leaves behind is found by the
//! form of its path.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The library that NIXL's C functions come from, by its soname.
pub(super) const LIBRARY: &str = "libnixl_capi.so";

/// The directory to look in first.
pub(super) const DIRECTORY_VARIABLE: &str = "P2PKV_NIXL_LIBRARY_DIR";

/// Where environment variables come from; tests have their own.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<std::ffi::OsString>;

/// What to give to the loader, in order. A name without a slash means the loader's own search path.
pub(super) fn candidates(environment: Environment<'_>, program: Option<&Path>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Some(directory) = environment(DIRECTORY_VARIABLE).filter(|directory| !directory.is_empty()) {
        found.push(PathBuf::from(directory).join(LIBRARY));
    }
    found.push(PathBuf::from(LIBRARY));
    for prefix in python_prefixes(environment, program) {
        for site in site_packages(&prefix) {
            found.extend(wheel_libraries(&site));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|path| seen.insert(path.clone()));
    found
}

/// Installations of Python that this process has to do with: the active environment, the interpreter that runs us, those
/// on the PATH, the user's own packages, the system's.
fn python_prefixes(environment: Environment<'_>, program: Option<&Path>) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = environment("VIRTUAL_ENV").map(PathBuf::from).into_iter().collect();
    let is_python = |name: &OsStr| name.to_string_lossy().starts_with("python");
    let running = program.filter(|program| program.file_name().is_some_and(is_python));
    let on_path = environment("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&on_path).map(|directory| directory.join("python3"));
    for interpreter in running.map(Path::to_path_buf).into_iter().chain(on_path) {
        if !interpreter.is_absolute() || !interpreter.exists() {
            continue;
        }
        // A virtual environment's interpreter is a link: first what it stands in, then what it leads to.
        let real = fs::canonicalize(&interpreter).ok();
        for path in [Some(interpreter), real].into_iter().flatten() {
            prefixes.extend(path.parent().and_then(Path::parent).map(Path::to_path_buf));
        }
    }
    prefixes.extend(environment("HOME").map(|home| PathBuf::from(home).join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    prefixes
}

fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let mut sites = Vec::new();
    for library in ["lib", "lib64"] {
        let directory = prefix.join(library);
        for name in entries(&directory, |name| name.starts_with("python3")) {
            sites.extend(["site-packages", "dist-packages"].map(|kind| directory.join(&name).join(kind)));
        }
    }
    sites.retain(|site| site.is_dir());
    sites
}

/// A wheel keeps its libraries beside the package, in a directory named after it: `.nixl_cu12.mesonpy.libs`.
fn wheel_libraries(site: &Path) -> Vec<PathBuf> {
    let is_wheel = |name: &str| name.starts_with(".nixl") && name.ends_with(".mesonpy.libs");
    let mut libraries: Vec<PathBuf> =
        entries(site, is_wheel).into_iter().map(|name| site.join(name).join(LIBRARY)).collect();
    libraries.retain(|library| library.is_file());
    libraries
}

/// Names in a directory, sorted so that every run searches alike; none if it cannot be read.
fn entries(directory: &Path, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let Ok(listing) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> = listing
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| wanted(name))
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    /// A directory of this test's own, gone when dropped.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let place = std::env::temp_dir().join(format!("p2pkv-{}-{name}", std::process::id()));
            fs::create_dir_all(&place).unwrap();
            Place(place)
        }

        fn wheel(&self, prefix: &str) -> PathBuf {
            let wheel = self.0.join(prefix).join("lib/python3.12/site-packages/.nixl_cu12.mesonpy.libs");
            fs::create_dir_all(&wheel).unwrap();
            fs::write(wheel.join(LIBRARY), b"").unwrap();
            wheel.join(LIBRARY)
        }

        fn interpreter(&self, prefix: &str) -> PathBuf {
            let bin = self.0.join(prefix).join("bin");
            fs::create_dir_all(&bin).unwrap();
            fs::write(bin.join("python3"), b"").unwrap();
            bin.join("python3")
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn search(variables: &[(&str, &Path)], program: Option<&Path>) -> Vec<PathBuf> {
        let environment = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        };
        candidates(&environment, program)
    }

    #[test]
    fn the_named_directory_comes_first_then_the_loader_then_wheels() {
        let place = Place::new("order");
        let wheel = place.wheel("venv");
        let found = search(
            &[(DIRECTORY_VARIABLE, Path::new("/named")), ("VIRTUAL_ENV", &place.0.join("venv"))],
            None,
        );
        assert_eq!(found.first(), Some(&PathBuf::from("/named").join(LIBRARY)));
        assert_eq!(found.get(1), Some(&PathBuf::from(LIBRARY)));
        assert_eq!(found.get(2), Some(&wheel));
    }

    #[test]
    fn wheels_are_found_through_the_path_and_through_the_running_interpreter() {
        let place = Place::new("path");
        let (first, second) = (place.wheel("a"), place.wheel("b"));
        let (on_path, running) = (place.interpreter("a"), place.interpreter("b"));
        let found = search(&[("PATH", on_path.parent().unwrap())], Some(&running));
        assert!(found.contains(&first) && found.contains(&second), "{found:?}");
        assert!(!search(&[], Some(Path::new("/opt/engine"))).contains(&second));
    }

    #[test]
    fn a_venv_leads_on_to_what_it_was_made_from() {
        let place = Place::new("link");
        let wheel = place.wheel("base");
        let base = place.interpreter("base");
        fs::create_dir_all(place.0.join("venv/bin")).unwrap();
        std::os::unix::fs::symlink(&base, place.0.join("venv/bin/python3")).unwrap();
        assert!(search(&[("PATH", &place.0.join("venv/bin"))], None).contains(&wheel));
    }

    #[test]
    fn nothing_of_python_leaves_the_loader_alone() {
        let place = Place::new("none");
        let found = search(&[("PATH", &place.0), ("HOME", &place.0)], None);
        assert_eq!(found.first(), Some(&PathBuf::from(LIBRARY)));
    }
}
