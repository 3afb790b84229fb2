use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::json;

use sandcell_e2e::client::Client;
use sandcell_e2e::machine;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, settled};

/// The control groups that a launcher keeps for later sandboxes: folders of 32 groups, one for each controller.
const GROUPS_KEPT: usize = 4 * 32;
/// The number of descriptors that a process may hold temporarily. A leak of one in each of a hundred runs would show.
const DESCRIPTORS_SLACK: usize = 16;

/// The machine's resources that one server holds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ServerResources {
    processes: usize,
    /// The number of groups. Their names are numbered; only their number must not grow.
    groups: usize,
    mounts: BTreeSet<String>,
    descriptors: Vec<usize>,
    files: usize,
}

impl ServerResources {
    /// Returns true when nothing has grown except the resources with an allowance.
    fn is_as_flat_as(&self, before: &Self) -> bool {
        let mut descriptors = self.descriptors.iter().zip(&before.descriptors);
        self.processes == before.processes
            && self.groups <= before.groups + GROUPS_KEPT
            && self.mounts == before.mounts
            && descriptors.all(|(now, before)| *now <= before + DESCRIPTORS_SLACK)
            && self.files == before.files
    }
}

fn holds(server: &Client, place: &TestDir) -> ServerResources {
    let helpers = machine::descendants(server.pid());
    let mut descriptors: Vec<usize> = std::iter::once(server.pid())
        .chain(helpers.iter().map(|seen| seen.pid))
        .map(machine::descriptors)
        .collect();
    // Processes are listed by id, and that order has no meaning.
    descriptors.sort_unstable();
    ServerResources {
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
    // A short history reaches its limit within the run, so that memory can be compared. The number of idle sandboxes
    // is fixed: otherwise it would follow the demand, and fall by itself in a long run.
    let place = TestDir::with_settings("[limits]\nhistory_rows = 20\n[pool]\nparked = 4\n");
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
    let began = Instant::now();
    (0..count).for_each(run);
    println!(
        "{count} times create-run-close: {:.1} ms each",
        began.elapsed().as_secs_f64() * 1000.0 / f64::from(count)
    );
    // After a thousand sessions another zygote takes over, and the old one lives ten seconds longer.
    let deadline = Instant::now() + DEFAULT_TIMEOUT;
    loop {
        let now = holds(&server, &place);
        if now.is_as_flat_as(&start) {
            break;
        }
        assert!(Instant::now() < deadline, "it grew from {start:?} to {now:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let memory_after = memory(&server);
    println!("private memory of server and helpers: {memory_before} -> {memory_after} bytes");
    assert!(
        memory_after < memory_before + (8 << 20),
        "memory grew from {memory_before} to {memory_after}"
    );
}
