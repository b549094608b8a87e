//! `holdfast dev`, as a newcomer meets it: what it prints is pasted, an owner is killed, Ctrl-C ends it.

use std::time::Instant;

use super::process::{DEADLINE, LOOK_EVERY, Process, holdfast};

/// A running dev, once it has printed `text`.
fn started(dir: &tempfile::TempDir, more: &[&str], text: &str) -> Process {
    let args = [&["dev", "--port", "0", "--admin-port", "0"], more].concat();
    let dev = Process::start(env!("CARGO_BIN_EXE_holdfast"), &args, dir.path().join("dev.log"));
    let by = Instant::now() + DEADLINE;
    while !dev.output().contains(text) {
        assert!(Instant::now() < by, "no \"{text}\" in:\n{}", dev.output());
        std::thread::sleep(LOOK_EVERY);
    }
    dev
}

#[test]
fn the_printed_line_plays_a_move_and_ctrl_c_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut dev = started(&dir, &[], "Ctrl-C ends it.");
    let output = dev.output();
    let line = output.lines().find(|l| l.starts_with("cargo run")).unwrap();
    let (_, args) = line.split_once(" -- ").unwrap();
    let (status, heard) = holdfast(&args.split(' ').collect::<Vec<_>>());
    assert!(status.success() && heard.contains("\"san\":\"e4\"") && heard.contains("durable"), "{heard}");
    let (status, heard) = holdfast(&args.split(' ').collect::<Vec<_>>());
    assert!(!status.success() && heard.contains("REJECTED"), "white moved twice: {heard}");
    dev.signal("INT");
    assert!(dev.wait().success(), "{}", dev.output());
}

#[test]
fn the_players_go_on_when_the_owner_of_their_game_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut dev = started(&dir, &["--kill-owner-every", "2s"], "  resumed in ");
    let output = dev.output();
    for told in ["killed owner-", " lost: epoch 1 -> 2", " sent on to the new owner", "in epoch 2"] {
        assert!(output.contains(told), "no \"{told}\" in:\n{output}");
    }
    dev.signal("INT");
    assert!(dev.wait().success(), "{}", dev.output());
}
