//! Pages of a log, and entries by seq.

use bytes::Bytes;
use hapax_core::Key;
use hapax_core::log::{FoundSeq, LogRetention, PageRequest, SeqSearch};

use super::{
    KEEP, append_with, attach_all, attach_page, event, event_with_payload, offsets, published,
};
use crate::context::LawContext;
use crate::suite::laws;

laws![
    key job;
    page_ends_before_its_limit_of_bytes,
    page_has_an_entry_larger_than_its_limit,
    state_is_left_out_unless_asked_for,
    entries_have_the_epoch_of_their_offset,
    find_seq_finds_the_first_with_the_highest_seq,
    find_seq_leaves_out_trimmed_entries,
];

/// Five entries of ten thousand bytes.
async fn five_entries(s: &LawContext, job: &Key) {
    let payload = Bytes::from(vec![b'x'; 10_000]);
    let events: Vec<_> =
        (1..=5).map(|seq| event_with_payload(job, "s", seq, payload.clone())).collect();
    published(s, &events).await;
}

async fn page_ends_before_its_limit_of_bytes(s: LawContext, job: Key) {
    five_entries(&s, &job).await;
    // A store may count some bytes for each entry beside its payload.
    for (after, bytes, expected) in [
        (0, 25_000, vec![1, 2]),
        (2, 25_000, vec![3, 4]),
        (4, 25_000, vec![5]),
        (5, 25_000, vec![]),
        (0, 100_000, vec![1, 2, 3, 4, 5]),
        (1, 39_999, vec![2, 3, 4]),
    ] {
        let page = PageRequest::new(after, 100).bytes(bytes);
        let attached = attach_page(&s, &job, &page).await.unwrap();
        assert_eq!(offsets(&attached), expected, "{bytes} bytes after {after}");
        assert_eq!(attached.head.last, 5);
    }
}

async fn page_has_an_entry_larger_than_its_limit(s: LawContext, job: Key) {
    five_entries(&s, &job).await;
    for bytes in [0, 1, 9_999] {
        let attached = attach_page(&s, &job, &PageRequest::new(2, 100).bytes(bytes)).await.unwrap();
        assert_eq!(offsets(&attached), [3], "{bytes}");
    }
    let none = attach_page(&s, &job, &PageRequest::new(2, 0).bytes(1)).await.unwrap();
    assert_eq!(offsets(&none), [] as [u64; 0]);
}

async fn state_is_left_out_unless_asked_for(s: LawContext, job: Key) {
    published(&s, &[event(&job, "s", 9), event(&job, "s", 1)]).await;
    for entries in [0, 10] {
        let page = PageRequest::new(0, entries);
        assert_eq!(attach_page(&s, &job, &page).await.unwrap().head.state, None);
        let asked = attach_page(&s, &job, &page.with_state()).await.unwrap().head.state;
        assert_eq!(asked.unwrap().seq, 9);
    }
    let alone = attach_page(&s, &job, &PageRequest::state_only()).await.unwrap();
    assert_eq!((alone.head.state.unwrap().seq, alone.entries), (9, vec![]));
}

async fn entries_have_the_epoch_of_their_offset(s: LawContext, job: Key) {
    let events: Vec<_> = (0..4).map(|seq| event(&job, "s", seq)).collect();
    let cursors = published(&s, &events).await;
    let attached = attach_all(&s, &job).await;
    let head = &attached.head;
    for entry in attached.entries.iter().chain(&head.state) {
        assert_eq!(entry.at.epoch, head.epochs.at(entry.at.offset), "{}", entry.at);
    }
    assert_eq!(attached.entries.iter().map(|entry| entry.at).collect::<Vec<_>>(), cursors);
}

async fn find_seq_finds_the_first_with_the_highest_seq(s: LawContext, job: Key) {
    assert_eq!(s.store.find_seq(&job, 5).await.unwrap(), None, "a job without a log");
    let stages = [("a", 10), ("a", 30), ("b", 30), ("a", 20), ("c", 30), ("a", 40)];
    let events: Vec<_> = stages.iter().map(|(stage, seq)| event(&job, stage, *seq)).collect();
    let cursors = published(&s, &events).await;
    for (seq, expected) in [
        (9, None),
        (10, Some((10, 0))),
        (29, Some((20, 3))),
        (30, Some((30, 1))),
        (39, Some((30, 1))),
        (1000, Some((40, 5))),
    ] {
        let found = expected.map(|(seq, i): (u64, usize)| FoundSeq { seq, at: cursors[i] });
        let search = s.store.find_seq(&job, seq).await.unwrap();
        assert_eq!(search, Some(SeqSearch { first: 1, found }), "{seq}");
    }
}

async fn find_seq_leaves_out_trimmed_entries(s: LawContext, job: Key) {
    let events: Vec<_> = [12, 3, 20, 21].map(|seq| event(&job, "s", seq)).to_vec();
    append_with(&s, &events, &LogRetention { max_entries: 3, ..KEEP }).await;
    let search = s.store.find_seq(&job, 12).await.unwrap().unwrap();
    let found = search.found.map(|found| (found.seq, found.at.offset));
    assert_eq!((search.first, found), (2, Some((3, 2))));
}
