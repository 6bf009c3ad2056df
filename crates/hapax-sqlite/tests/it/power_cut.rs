//! A power cut at any moment: what was acknowledged is there. A library in C (`power_cut.c`) writes
//! down all changes of the files and all acknowledgements in one order. Each test then makes the
//! files that a disk may hold after a cut: everything before the last sync of a file, and any part
//! of what was written to it after that.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;

use fastrand::Rng;
use hapax_conformance::scale;
use hapax_sqlite::SqliteStore;

use crate::common::*;
use crate::crash::{Said, first_lost};

/// A change of a file, or a line on standard output.
struct Entry {
    kind: u8,
    path: String,
    offset: usize,
    data: Vec<u8>,
}

/// Reads the entries of the library in C; the last one may be cut off.
fn entries(log: &[u8]) -> Vec<Entry> {
    let (mut entries, mut rest) = (Vec::new(), log);
    let mut take = |count: usize| rest.split_off(..count);
    while let Some(head) = take(19) {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap()) as usize;
        let path_length = usize::from(u16::from_le_bytes([head[1], head[2]]));
        let (Some(path), Some(data)) = (
            take(path_length),
            take(match head[0] {
                b'w' | b'o' => number(&head[11..19]),
                _ => 0,
            }),
        ) else {
            break;
        };
        entries.push(Entry {
            kind: head[0],
            path: String::from_utf8(path.to_vec()).unwrap(),
            offset: number(&head[3..11]),
            data: data.to_vec(),
        });
    }
    entries
}

/// Runs the process of the crash tests under the library until it acknowledged some steps.
fn record(lying_disk: bool) -> Vec<Entry> {
    let (place, tools) = (Place::new(), tempfile::tempdir().unwrap());
    let (library, log) = (tools.path().join("power_cut.so"), tools.path().join("log"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/power_cut.c");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([library.as_os_str(), source.as_ref()])
        .status();
    assert!(compiled.expect("cc, which also compiles SQLite").success());
    let mut command = this_binary();
    command.env("LD_PRELOAD", &library);
    command.env("HAPAX_CUT_FOLDER", place.file().parent().unwrap()).env("HAPAX_CUT_LOG", &log);
    if lying_disk {
        command.env("HAPAX_CUT_LYING_DISK", "1");
    }
    let mut process = start_process(command, "crash::victim", &place);
    let acknowledged = lines_of(&mut process).take(150).count();
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(acknowledged, 150, "the process works until it is killed");
    entries(&fs::read(log).unwrap())
}

/// Writes the files that the disk may hold after a cut behind these entries.
fn cut(entries: &[Entry], folder: &Path, random: &mut Rng) {
    let syncs = entries.iter().enumerate().filter(|(_, entry)| entry.kind == b's');
    let last_sync: HashMap<_, _> = syncs.map(|(index, sync)| (&sync.path, index)).collect();
    let mut files: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        let is_synced = last_sync.get(&entry.path).is_some_and(|last| index < *last);
        if !is_synced && entry.kind != b'u' && random.bool() {
            continue;
        }
        match entry.kind {
            b'w' => {
                // A disk writes whole sectors: a write that was not synced may end after any of them.
                let sectors = entry.data.len().div_ceil(512);
                let torn = if is_synced { sectors } else { random.usize(0..=sectors) };
                let data = &entry.data[..entry.data.len().min(torn * 512)];
                let file = files.entry(&entry.path).or_default();
                let end = entry.offset + data.len();
                file.resize(file.len().max(end), 0);
                file[entry.offset..end].copy_from_slice(data);
            }
            b't' => files.entry(&entry.path).or_default().resize(entry.offset, 0),
            b'u' => _ = files.remove(entry.path.as_str()),
            _ => {}
        }
    }
    for (path, data) in files {
        fs::write(folder.join(Path::new(path).file_name().unwrap()), data).unwrap();
    }
}

/// Cuts the power at random moments. Returns the first loss of what was acknowledged before.
async fn first_loss(entries: &[Entry], cuts: u32) -> Option<String> {
    // Always the same cuts of the same entries, so that a loss can be looked at.
    let mut random = Rng::with_seed(1);
    for _ in 0..cuts {
        let before = &entries[..random.usize(1..=entries.len())];
        let mut said = Said::default();
        for line in before.iter().filter(|entry| entry.kind == b'o') {
            String::from_utf8_lossy(&line.data).lines().for_each(|line| said.hear(line));
        }
        let place = Place::new();
        cut(before, place.file().parent().unwrap(), &mut random);
        let lost = match SqliteStore::open(place.config()) {
            Ok(store) => first_lost(&store, &said).await,
            Err(error) => Some(error.to_string()),
        };
        if let Some(lost) = lost {
            return Some(format!(
                "a cut after {} of {} entries: {lost}",
                before.len(),
                entries.len()
            ));
        }
    }
    None
}

#[tokio::test]
async fn fault_38_power_cut_loses_nothing_acknowledged() {
    assert_eq!(first_loss(&record(false), scale(60)).await, None);
}

#[tokio::test]
async fn power_cut_of_a_disk_that_does_not_sync_is_noticed() {
    assert!(first_loss(&record(true), 200).await.is_some());
}
