//! SQLite and PostgreSQL behave alike.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hapax_testkit::Postgres;

use super::{RECENT, Users, Visitor};
use crate::place::{Place, Spot};

const ALICE: &str = "Uf00d0000000000000000000000000a11";
const BOB: &str = "Uf00d0000000000000000000000000b0b";

/// Opens the database with a long limit, so that a busy machine does not fail the test.
async fn open(url: &str) -> anyhow::Result<Arc<Users>> {
    Ok(Arc::new(Users::open(url, Duration::from_secs(60)).await?))
}

async fn on_both<F: Future<Output = ()>>(test: impl Fn(Arc<Users>) -> F) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = format!("sqlite:{}/weather.db", folder.path().display());
    let postgres = Postgres::start();
    for url in [file, postgres.url()] {
        test(open(&url).await.expect("a database")).await;
        // Opening the same database again keeps the tables.
        open(&url).await.expect("the same database").database.ping().await.expect("an answer");
    }
}

fn at(id: &str, at: i64) -> Visitor {
    Visitor { id: id.into(), at }
}

fn place(name: &str) -> Place {
    Place::new(name, 25.04, 121.56).expect("a place")
}

async fn recent(users: &Users, id: &str) -> Vec<String> {
    let all = users.recent(id).await.expect("a list");
    all.into_iter().map(|recent| recent.place.name).collect()
}

#[tokio::test]
async fn the_last_five_queries_are_kept_newest_first_and_each_place_once() {
    on_both(|users| async move {
        assert!(recent(&users, ALICE).await.is_empty());
        for name in ["台北", "新竹", "台中", "台北", "高雄", "花蓮", "台東"] {
            users.add_recent(&at(ALICE, 1), &place(name)).await.unwrap();
        }
        users.add_recent(&at(BOB, 1), &place("東京")).await.unwrap();
        let names = recent(&users, ALICE).await;
        assert_eq!(names, ["台東", "花蓮", "高雄", "台北", "台中"]);
        assert_eq!(names.len(), RECENT);
        assert_eq!(recent(&users, BOB).await, ["東京"]);
    })
    .await;
}

#[tokio::test]
async fn a_query_keeps_its_number_and_moves_to_the_front() {
    on_both(|users| async move {
        let first = users.add_recent(&at(ALICE, 1), &place("台北")).await.unwrap().unwrap();
        users.add_recent(&at(ALICE, 2), &place("新竹")).await.unwrap();
        let again = Place { latitude: 25.1, ..place("台北") };
        assert_eq!(users.add_recent(&at(ALICE, 3), &again).await.unwrap(), Some(first));
        let all = users.recent(ALICE).await.unwrap();
        assert_eq!((all[0].id, &all[0].place, all.len()), (first, &again, 2));
    })
    .await;
}

#[tokio::test]
async fn home_and_office_are_set_changed_and_kept_apart() {
    on_both(|users| async move {
        assert_eq!(users.place(ALICE, Spot::Home).await.unwrap(), None);
        for name in ["台北", "板橋"] {
            users.set_place(&at(ALICE, 1), Spot::Home, &place(name)).await.unwrap();
        }
        users.set_place(&at(ALICE, 1), Spot::Office, &place("新竹")).await.unwrap();
        assert_eq!(users.place(ALICE, Spot::Home).await.unwrap(), Some(place("板橋")));
        assert_eq!(users.place(ALICE, Spot::Office).await.unwrap(), Some(place("新竹")));
        assert_eq!(users.place(BOB, Spot::Office).await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn nothing_is_kept_of_somebody_who_left_whatever_comes_late() {
    on_both(|users| async move {
        users.follow(&at(ALICE, 10)).await.unwrap();
        users.set_place(&at(ALICE, 11), Spot::Home, &place("台北")).await.unwrap();
        users.add_recent(&at(ALICE, 12), &place("台北")).await.unwrap();
        users.follow(&at(BOB, 10)).await.unwrap();
        users.set_place(&at(BOB, 11), Spot::Home, &place("新竹")).await.unwrap();

        users.unfollow(&at(ALICE, 20)).await.unwrap();
        // Events sent before the unfollow but handled after it.
        users.set_place(&at(ALICE, 19), Spot::Office, &place("新竹")).await.unwrap();
        assert_eq!(users.add_recent(&at(ALICE, 19), &place("新竹")).await.unwrap(), None);
        users.follow(&at(ALICE, 10)).await.unwrap();
        for spot in Spot::ALL {
            assert_eq!(users.place(ALICE, spot).await.unwrap(), None);
        }
        assert!(recent(&users, ALICE).await.is_empty());
        assert_eq!(users.place(BOB, Spot::Home).await.unwrap(), Some(place("新竹")));

        // The user follows again; the older unfollow must not undo that.
        users.follow(&at(ALICE, 30)).await.unwrap();
        users.set_place(&at(ALICE, 31), Spot::Home, &place("台中")).await.unwrap();
        users.unfollow(&at(ALICE, 20)).await.unwrap();
        assert_eq!(users.place(ALICE, Spot::Home).await.unwrap(), Some(place("台中")));
    })
    .await;
}

#[tokio::test]
async fn two_queries_of_one_user_at_once_are_both_kept() {
    on_both(|users| async move {
        let (one, two) = (at(ALICE, 1), at(ALICE, 1));
        let (north, south) = (place("基隆"), place("屏東"));
        let (one, two) =
            tokio::join!(users.add_recent(&one, &north), users.add_recent(&two, &south));
        assert_ne!(one.unwrap(), two.unwrap());
        assert_eq!(users.recent(ALICE).await.unwrap().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_file_of_a_newer_bot_and_an_unknown_scheme_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("weather.db");
    let database = hapax::sqlite::rusqlite::Connection::open(&file).unwrap();
    database.pragma_update(None, "user_version", 1000).unwrap();
    assert!(open(&format!("sqlite:{}", file.display())).await.is_err());
    for url in ["mysql://127.0.0.1/weather", "weather.db", "", "postgres://[secret"] {
        let error = open(url).await.err().expect("an error");
        assert!(!format!("{error:#}").contains("secret"), "{error:#}");
    }
}
