//! The agent as process 1 of a process namespace, where it owns every process.

use std::process::Stdio;

use sandcell_agent::client::AgentClient;
use sandcell_sandbox::{Channel, Exit, Process, Signal, SignalScope};

use super::common::*;

struct Inside {
    client: AgentClient,
    namespace: tokio::process::Child,
}

/// Starts an agent in a separate namespace. Prints a line and returns None where that is not possible.
async fn inside() -> Option<Inside> {
    let mut unshare = tokio::process::Command::new("unshare");
    unshare.args([
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ]);
    unshare
        .arg(env!("CARGO_BIN_EXE_sandcell-agent"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut namespace = unshare.spawn().ok()?;
    let streams = (namespace.stdout.take()?, namespace.stdin.take()?);
    match AgentClient::connect(streams.0, streams.1).await {
        Ok(client) => Some(Inside { client, namespace }),
        Err(error) => {
            println!("skipped: no process namespace can be made here ({error})");
            None
        }
    }
}

impl Inside {
    /// Returns the number of processes, without the agent and the process that counts.
    async fn others(&self) -> usize {
        let said = run(&self.client, shell("set -- /proc/[0-9]*; echo $#")).await;
        said.out().trim().parse::<usize>().unwrap() - 2
    }
}

/// Asserts that this number of others is left once the killed processes have been reaped.
async fn left(inside: &Inside, expected: usize) {
    let mut left = usize::MAX;
    for _ in 0..300 {
        left = inside.others().await;
        if left == expected {
            return;
        }
    }
    panic!("{left} others are left, not {expected}");
}

async fn ready(process: &mut Process) {
    until(process, Channel::Stdout, b"ready\n").await;
}

const DAEMON_SCRIPT: &str = "setsid sh -c 'setsid sleep 1000 & exit' & wait; ";

#[tokio::test]
async fn orphans_are_reaped() {
    let Some(inside) = inside().await else { return };
    let said = run(
        &inside.client,
        shell("n=0; while [ $n -lt 300 ]; do n=$((n+1)); (sleep 0.01 &) ; done; sleep 0.5; echo done"),
    )
    .await;
    assert_eq!((said.out().as_str(), said.exit), ("done\n", Some(Exit::Code(0))));
    left(&inside, 0).await;
    assert_eq!(inside.client.usage().await.unwrap().processes, 1);
}

#[tokio::test]
async fn a_daemon_does_not_outlive_its_interpreter() {
    let Some(inside) = inside().await else { return };
    for alone in [true, false] {
        let other = if alone {
            None
        } else {
            Some(
                inside
                    .client
                    .spawn(shell("sleep 1000 & setsid sleep 1000 & wait"))
                    .await
                    .unwrap(),
            )
        };
        let mut process = inside
            .client
            .spawn(shell(&format!("{DAEMON_SCRIPT} echo ready; sleep 1000")))
            .await
            .unwrap();
        ready(&mut process).await;
        process.handle.signal(Signal::Kill, SignalScope::Tree).await.unwrap();
        while !matches!(
            next(&mut process).await,
            sandcell_sandbox::ProcessEvent::Exited { exit: Exit::Signal(9) }
        ) {}
        // The other program, its child and its child in a separate session are left alone.
        left(&inside, if alone { 0 } else { 3 }).await;
        drop(other);
    }
}

#[tokio::test]
async fn the_daemon_of_an_ended_program_is_killed_when_its_handle_is_dropped() {
    let Some(inside) = inside().await else { return };
    let mut process = inside
        .client
        .spawn(shell(&format!("{DAEMON_SCRIPT} echo ready")))
        .await
        .unwrap();
    ready(&mut process).await;
    while !matches!(next(&mut process).await, sandcell_sandbox::ProcessEvent::Exited { .. }) {}
    drop(process);
    left(&inside, 0).await;
}

#[tokio::test]
async fn a_fork_bomb_of_daemons_is_killed_while_another_program_lives() {
    let Some(inside) = inside().await else { return };
    let mut piped = shell("while read -r line; do echo \"$line\"; done");
    piped.stdin = sandcell_sandbox::StdinMode::Piped;
    let mut other = inside.client.spawn(piped).await.unwrap();
    let mut kept = shell("echo ready; sleep 1000");
    kept.control = true;
    let mut kept = inside.client.spawn(kept).await.unwrap();
    ready(&mut kept).await;
    // Four processes (more would starve the agent where nothing limits processes). Each forks itself into a new session
    // forever, so a process that is found has vanished a moment later.
    let script = "import os,time\n\
        print('ready', flush=True)\n\
        for _ in range(4):\n\
        \x20if os.fork() == 0:\n\
        \x20\x20end = time.time() + 30\n\
        \x20\x20while time.time() < end:\n\
        \x20\x20\x20if os.fork(): os._exit(0)\n\
        \x20\x20\x20os.setsid()\n\
        \x20\x20os._exit(0)\n\
        time.sleep(1000)\n";
    let mut wanted = command(&["python3", "-I", "-S", "-c", script]);
    wanted.env.insert("PATH".to_owned(), std::env::var("PATH").unwrap());
    let Ok(mut bomb) = inside.client.spawn(wanted).await else {
        return println!("skipped: no python3");
    };
    ready(&mut bomb).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    bomb.handle.signal(Signal::Kill, SignalScope::Tree).await.unwrap();
    assert_eq!(bomb_end(&mut bomb).await, Some(Exit::Signal(9)));
    // The survivors: the shell that reads, and one with its sleep.
    left(&inside, 3).await;
    // It was neither killed nor left stopped.
    other.handle.write(Channel::Stdin, "still here\n".into()).await.unwrap();
    assert_eq!(until(&mut other, Channel::Stdout, b"\n").await, b"still here\n");
}

async fn bomb_end(process: &mut Process) -> Option<Exit> {
    all(process).await.exit
}

#[tokio::test]
async fn code_inside_cannot_end_or_stop_the_agent() {
    let Some(inside) = inside().await else { return };
    let said = run(
        &inside.client,
        shell("for s in TERM KILL STOP INT HUP CHLD USR1 PIPE; do kill -s $s 1; done; echo tried"),
    )
    .await;
    assert_eq!(said.out(), "tried\n");
    inside.client.ping().await.unwrap();
    let mut process = inside
        .client
        .spawn(shell("kill -KILL -1; echo not reached"))
        .await
        .unwrap();
    assert!(all(&mut process).await.exit.is_some());
    inside.client.ping().await.unwrap();
}

#[tokio::test]
async fn the_end_of_the_host_process_ends_all_processes() {
    let Some(mut inside) = inside().await else { return };
    let mut process = inside
        .client
        .spawn(shell(&format!("{DAEMON_SCRIPT} echo ready; sleep 1000")))
        .await
        .unwrap();
    ready(&mut process).await;
    inside.client.close();
    let status = tokio::time::timeout(TEST_TIMEOUT, inside.namespace.wait())
        .await
        .unwrap()
        .unwrap();
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn programs_are_killed_for_memory_before_the_agent() {
    let Some(inside) = inside().await else { return };
    let said = run(
        &inside.client,
        shell("cat /proc/1/oom_score_adj; sleep 0.2; cat /proc/self/oom_score_adj"),
    )
    .await;
    let scores: Vec<i32> = said.out().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(scores[1], (scores[0] + 200).min(1000));
}
