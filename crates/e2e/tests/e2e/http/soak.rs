use std::time::{Duration, Instant};

use serde_json::json;

use sandcell_e2e::http::{Caller, Server, token};
use sandcell_e2e::machine::private_memory;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, until};

/// A client with its own token, sandbox and marker words.
struct Client {
    token: String,
    name: String,
}

/// A client's results.
#[derive(Default)]
struct ClientResults {
    /// The time of each answer.
    answered: Vec<Instant>,
    slowest: Duration,
    faults: Vec<String>,
}

/// Makes one call a second, with words that no other client has and a variable that only its own calls change.
fn talk(caller: &Caller, name: &str, began: Instant, lasts: Duration, from: u64) -> ClientResults {
    let mut seen = ClientResults::default();
    for round in from.. {
        let due = Duration::from_secs(round - from);
        if due >= lasts {
            return seen;
        }
        std::thread::sleep((began + due).saturating_duration_since(Instant::now()));
        let words = format!(
            "{name} round {round} {}",
            "ä".repeat(1 + usize::try_from(round).unwrap() % 500)
        );
        let code = format!("n = globals().get('n', 0) + 1\nprint({words:?}, n)");
        let call = caller.tool("execute_code", &json!({"code": code}));
        let start = Instant::now();
        let reply = caller.send(&call, "");
        seen.slowest = seen.slowest.max(start.elapsed());
        let expected = format!("{words} {}\n", round + 1);
        if reply.status == 200 && reply.message()["result"]["content"][0]["text"] == expected {
            seen.answered.push(Instant::now());
        } else if seen.faults.len() < 3 {
            seen.faults
                .push(format!("{name} round {round}: {} {:.600}", reply.status, reply.body));
        }
    }
    seen
}

fn all_talk(server: &Server, clients: &[Client], lasts: Duration, from: u64) -> Vec<ClientResults> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let talks: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(number, client)| {
                // The clients' calls are spread over the second.
                let offset = Duration::from_millis(
                    1000 * u64::try_from(number).unwrap() / u64::try_from(clients.len()).unwrap(),
                );
                scope.spawn(move || {
                    talk(
                        &server.with_token(&client.token),
                        &client.name,
                        began + offset,
                        lasts,
                        from,
                    )
                })
            })
            .collect();
        talks.into_iter().map(|talk| talk.join().unwrap()).collect()
    })
}

/// `cargo xtask soak --http` runs it with two hundred clients for five minutes.
#[test]
fn many_clients_get_their_own_answers_and_a_kill_loses_at_most_a_second() {
    let _turn = begin!(alone);
    let number = |name: &str, usual: u64| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let count = number("SANDCELL_TEST_SOAK_CLIENTS", 10);
    let seconds = number("SANDCELL_TEST_SOAK_HTTP", 6);
    let place = TestDir::with_settings("[limits]\nmemory_mb = 64\n[pool]\nparked = 0\n");
    let clients: Vec<Client> = (0..count)
        .map(|n| Client {
            token: token(&place, &[&format!("c{n}")]).1,
            name: format!("client-{n}"),
        })
        .collect();
    let mut server = Server::start(&place, &[]);
    // Every sandbox exists before the measurement.
    for part in clients.chunks(8) {
        std::thread::scope(|scope| {
            for client in part {
                scope.spawn(|| server.with_token(&client.token).text("n = 0"));
            }
        });
    }
    let third = Duration::from_secs(seconds.div_ceil(3));
    let rounds = third.as_secs();
    let mut memory = vec![private_memory(server.pid())];
    let mut answered: Vec<Vec<Instant>> = clients.iter().map(|_| Vec::new()).collect();
    let mut slowest = Duration::ZERO;
    for part in 0..3 {
        for (seen, all) in all_talk(&server, &clients, third, part * rounds)
            .into_iter()
            .zip(&mut answered)
        {
            assert!(seen.faults.is_empty(), "{:#?}", seen.faults);
            all.extend(seen.answered);
            slowest = slowest.max(seen.slowest);
        }
        memory.push(private_memory(server.pid()));
    }
    let calls: usize = answered.iter().map(Vec::len).sum();
    let mib: Vec<u64> = memory.iter().map(|bytes| bytes >> 20).collect();
    println!("{count} clients, {calls} calls, the slowest {slowest:?}; memory of the server in MiB: {mib:?}");
    // The stored results of all callers together are bounded. The store is full within the first third.
    let (second, last) = (memory[2], memory[3]);
    assert!(last < second + (8 << 20), "memory goes on growing: {mib:?}");
    if seconds > 60 {
        let after = until(DEFAULT_TIMEOUT, "memory to be given back", || {
            Some(private_memory(server.pid())).filter(|now| *now < last)
        });
        println!("after the clients have gone: {} MiB", after >> 20);
    }
    // Killed amid calls: every call answered more than a second before is in the history.
    let sleep = json!({"code": "import time\ntime.sleep(20)"});
    let unanswered: Vec<_> = clients
        .iter()
        .map(|client| {
            let caller = server.with_token(&client.token);
            caller.begin(&caller.tool("execute_code", &sleep), "")
        })
        .collect();
    server.signal("-KILL");
    let killed = Instant::now();
    let _status = server.wait(Duration::from_secs(10));
    drop(unanswered);
    let server = Server::start(&place, &[]);
    for (client, answered) in clients.iter().zip(&answered) {
        let safe = answered
            .iter()
            .filter(|at| killed.duration_since(**at) > Duration::from_secs(1))
            .count();
        let view = server
            .with_token(&client.token)
            .call("get_execution_history", json!({"last_n": 50}));
        let total = usize::try_from(view.data()["total"].as_u64().unwrap()).unwrap();
        // The first one made the variable.
        assert!(
            total > safe,
            "{}: {total} of {} are in the history",
            client.name,
            safe + 1
        );
        let rows = view.data()["records"].as_array().unwrap().clone();
        assert!(
            !rows.is_empty()
                && rows.iter().all(|row| {
                    let code = row["code_preview"].as_str().unwrap();
                    code == "n = 0"
                        || code.contains(&format!("'{} round", client.name))
                        || code.contains(&format!("\"{} round", client.name))
                }),
            "{rows:?}"
        );
    }
}
