//! `kill -9` at any moment: what was acknowledged is there, and no fence comes twice.

use std::collections::HashMap;

use crate::common::victim::{kill_one, say};
use crate::common::*;
use hapax_conformance::scale;
use hapax_core::{Claimed, Claims, Expect, Put, Records, Token};
use hapax_sqlite::SqliteStore;

/// Tasks of the process that is killed.
const TASKS: u64 = 8;

/// The process that is killed: works for ever and says what was acknowledged.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that the test below kills"]
async fn victim() {
    let store = crate::common::inherited();
    let work: Vec<_> = (0..TASKS).map(|task| tokio::spawn(work(store.clone(), task))).collect();
    for task in work {
        task.await.unwrap();
    }
}

async fn work(store: SqliteStore, task: u64) {
    for n in 0_u64.. {
        let name = format!("{task}-{}", Token::random().as_str());
        let held = ticket(store.claim(&command(&name), &ask()).await);
        say(format_args!("granted {name} {}", held.fence));
        let _ = store.settle(&command(&name), &held.token, name.clone().into()).await.unwrap();
        say(format_args!("settled {name} {}", held.fence));
        let value = n.to_string().into();
        let put = store.put(&record(&task.to_string()), value, &Expect::Any, None).await.unwrap();
        let Put::Stored { version, .. } = put else { panic!("{put:?}") };
        say(format_args!("put {task} {}", version.as_str()));
    }
}

/// The lines that a victim printed before it died.
#[derive(Default)]
pub(crate) struct Said {
    /// Name to fence.
    granted: HashMap<String, u64>,
    settled: Vec<String>,
    /// Task to the last version.
    put: HashMap<String, u64>,
}

impl Said {
    pub(crate) fn hear(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        if let [what, name, number] = words[..]
            && let Ok(number) = number.parse()
        {
            match what {
                "granted" => _ = self.granted.insert(name.into(), number),
                "settled" => self.settled.push(name.into()),
                "put" => _ = self.put.insert(name.into(), number),
                _ => {}
            }
        }
    }

    fn numbers(&self) -> Vec<u64> {
        self.granted.values().chain(self.put.values()).copied().collect()
    }
}

/// The first acknowledged step that the store does not know, or cannot be asked for.
pub(crate) async fn first_lost(store: &SqliteStore, said: &Said) -> Option<String> {
    for (name, fence) in &said.granted {
        let view = store.look(&command(name)).await;
        if !matches!(&view, Ok(Some(view)) if view.fence.map(|f| f.0) == Some(*fence)) {
            return Some(format!("the grant of {name} with fence {fence}: {view:?}"));
        }
    }
    for name in &said.settled {
        let answer = store.claim(&command(name), &ask()).await;
        if !matches!(&answer, Ok(Claimed::Settled { value, .. }) if value == name) {
            return Some(format!("the answer of {name}: {answer:?}"));
        }
    }
    for (task, version) in &said.put {
        let stored = store.get(&record(task)).await;
        let found = stored.as_ref().ok().and_then(|stored| stored.as_ref());
        if found.and_then(|found| found.version.as_str().parse().ok()) < Some(*version) {
            return Some(format!("version {version} of record {task}: {stored:?}"));
        }
    }
    None
}

#[tokio::test]
async fn killed_process_loses_nothing_acknowledged() {
    let place = Place::new();
    let mut highest = 0;
    let mut heard = 0;
    for round in 0..scale(60) as usize {
        let mut said = Said::default();
        kill_one("crash::victim", &place, round).iter().for_each(|line| said.hear(line));

        let mut numbers = said.numbers();
        numbers.sort_unstable();
        heard += numbers.len();
        assert!(numbers.is_sorted_by(|a, b| a < b), "a fence came twice");
        assert!(numbers.first().is_none_or(|first| *first > highest), "a fence went back");
        highest = numbers.last().copied().unwrap_or(highest);

        let store = place.store();
        assert_eq!(first_lost(&store, &said).await, None);
        let mine = ticket(store.claim(&command(&format!("after-{round}")), &ask()).await);
        assert!(mine.fence.0 > highest, "a fence went back");
        highest = mine.fence.0;
    }
    assert!(heard > 0, "no victim acknowledged anything");
}
