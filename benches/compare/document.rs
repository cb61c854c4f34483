//! `docs/performance.md`.

use std::fmt::Write;
use std::path::Path;

use crate::machine::Machine;
use crate::plots;
use crate::row::{Row, Section};

const SECTIONS: [(Section, &str, &str); 5] = [
    (
        Section::Ceilings,
        "Beside bare programs",
        "Loads of scattered blocks, submitted to finished, in turn with a bare program that moves the same blocks: its block list \
         is known beforehand, it has one peer, and nothing may fail. Both start anew four times: where its pages happen to lie \
         makes up to a fifth of a region's speed.",
    ),
    (
        Section::Rivals,
        "Beside others",
        "The same loads in turn with others that move blocks between two processes of this machine. Others are stopped \
         (`SIGSTOP`) while the library runs: NIXL's progress threads and a busy tier of vLLM never sleep.",
    ),
    (
        Section::Latency,
        "One block",
        "From `submit_load` to the result in hand. vLLM's tier is polled as often as possible (busy) or every millisecond, as \
         the thread does it that vLLM polls with (paced).",
    ),
    (
        Section::Control,
        "Control plane",
        "As good as nothing is moved: the library's blocks have 8 bytes here, copied through the mapping; vLLM's tier has a data \
         plane that completes at once and moves nothing (null). CPU is user and system time of both processes, from what a fetch \
         of all keys takes more than one of a single key. \
         All processes, rivals' too, have freed 16 MiB once before, as engines have: until then the C library gives the memory of \
         each large message back to the system.",
    ),
    (Section::Scale, "Scale", "What grows with peers, blocks, parked stores and threads."),
];

pub fn write(rows: &[Row], machine: &Machine) -> std::io::Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    for plot in plots::ALL {
        plot.draw(rows, &docs)?;
    }
    std::fs::write(docs.join("performance.md"), text(rows, machine).unwrap())
}

fn text(rows: &[Row], machine: &Machine) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    writeln!(text, "# Performance\n")?;
    writeln!(
        text,
        "Written by `cargo bench --bench compare` (`make bench`); do not edit. {machine} Medians, quartiles in brackets; \
         GB is 10^9 bytes. Absolute figures move from machine to machine, and with what else runs: **the ratio counts**, \
         and both of its sides were measured in the same run, in turn.\n"
    )?;
    for (section, title, explanation) in SECTIONS {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.section == section).collect();
        if rows.is_empty() {
            continue;
        }
        writeln!(text, "## {title}\n\n{explanation}\n")?;
        for plot in plots::ALL.iter().filter(|plot| plot.section == section) {
            writeln!(text, "![{}]({})\n", plot.title, plot.file)?;
        }
        writeln!(text, "| what | this library | against | its figure | ratio | reach | met |")?;
        writeln!(text, "|---|---|---|---|---|---|---|")?;
        rows.iter().try_for_each(|row| write_row(&mut text, row))?;
        writeln!(text)?;
    }
    writeln!(
        text,
        "The ratio says how many times as good the library is; where something should not grow, how much it grew. Without \
         a quiet machine latencies, p99 above all, say more of the machine than of what is measured."
    )?;
    Ok(text)
}

fn write_row(text: &mut String, row: &Row) -> std::fmt::Result {
    writeln!(
        text,
        "| {} | {} | {} | {} | {} | {} | {} |",
        row.what,
        row.ours_in_words(),
        row.against,
        row.theirs_in_words().replace('|', "/"),
        row.ratio_in_words(),
        row.reach(),
        row.met_in_words()
    )
}
