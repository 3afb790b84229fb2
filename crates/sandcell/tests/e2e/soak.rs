use std::collections::BTreeSet;

use serde_json::json;

use crate::support::client::Client;
use crate::support::machine;
use crate::support::place::Place;
use crate::support::{begin, settled, settles};

/// What one server holds of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holds {
    processes: usize,
    /// Their names are numbered; only how many there are must not grow.
    groups: usize,
    mounts: BTreeSet<String>,
    descriptors: Vec<usize>,
    files: usize,
}

fn holds(server: &Client, place: &Place) -> Holds {
    let helpers = machine::descendants(server.pid());
    let mut descriptors: Vec<usize> = std::iter::once(server.pid())
        .chain(helpers.iter().map(|seen| seen.pid))
        .map(machine::descriptors)
        .collect();
    // Processes are found in the order of their numbers, which says nothing.
    descriptors.sort_unstable();
    Holds {
        processes: helpers.len(),
        groups: machine::groups_of(&helpers).len(),
        mounts: machine::mounts(),
        descriptors,
        files: place.temporary_files().len(),
    }
}

fn memory(server: &Client) -> u64 {
    std::iter::once(server.pid())
        .chain(machine::descendants(server.pid()).into_iter().map(|seen| seen.pid))
        .map(machine::private_memory)
        .sum()
}

/// `cargo xtask soak` runs it with a thousand and more.
#[test]
fn create_run_close_over_and_over_keeps_everything_flat() {
    let _turn = begin!(alone);
    let count: u32 = std::env::var("SANDCELL_TEST_SOAK").map_or(100, |text| text.parse().unwrap());
    // A short history reaches its bound within the run, so that memory can be compared.
    let place = Place::with_settings("[limits]\nhistory_rows = 20\n");
    let server = Client::start(&mut place.command(&["serve"]));
    let run = |n: u32| {
        let answer = server.call(
            "create_run_close",
            json!({"code": format!("open('f', 'w').write('x' * 10000)\nprint({n})")}),
        );
        assert_eq!(answer.output().trim(), n.to_string(), "{answer:?}\n{}", server.log());
    };
    (0..30).for_each(run);
    let (start, memory_before) = (settled(|| holds(&server, &place)), memory(&server));
    let began = std::time::Instant::now();
    (0..count).for_each(run);
    println!(
        "{count} times create-run-close: {:.1} ms each",
        began.elapsed().as_secs_f64() * 1000.0 / f64::from(count)
    );
    settles(|| holds(&server, &place), &start);
    let memory_after = memory(&server);
    println!("private memory of server and helpers: {memory_before} -> {memory_after} bytes");
    assert!(
        memory_after < memory_before + (8 << 20),
        "memory grew from {memory_before} to {memory_after}"
    );
}
