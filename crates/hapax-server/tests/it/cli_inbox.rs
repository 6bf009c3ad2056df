//! `hapax inbox`, against a server and on a store.

use crate::cli_support::{Ran, Server, hapax, run};
use crate::support::store::TestStore;

fn a_message_is_handled_once(ask: impl Fn(&[&str]) -> Ran) {
    let first = ask(&["begin", "billing", "m", "--json"]).json();
    let ticket = first["token"].as_str().unwrap();
    assert_eq!(first["attempt"], 1);
    assert!(ask(&["begin", "billing", "m"]).failed(75).contains("in-progress"));
    assert_eq!(ask(&["give-back", "billing", "m", "--ticket", ticket]).ok(), "");
    ask(&["settle", "billing", "m", "--ticket", ticket]).failed(4);
    let second = ask(&["begin", "billing", "m", "--lease", "5m", "--json"]).json();
    assert_eq!(second["attempt"], 2);
    let ticket = second["token"].as_str().unwrap();
    assert!(ask(&["settle", "billing", "m", "--ticket", ticket]).ok().contains("completed"));
    assert_eq!(ask(&["begin", "billing", "m"]).ok(), "duplicate  true\n");
    assert!(ask(&["begin", "mailing", "m"]).ok().contains("ticket"));
    ask(&["begin", "billing", "m", "--lease", "2h"]).failed(1);
    ask(&["begin", "billing"]).failed(2);
}

#[test]
fn inbox_message_is_handled_once_on_a_server() {
    let server = Server::start();
    a_message_is_handled_once(|arguments| server.run(["inbox"].iter().chain(arguments)));
}

#[test]
fn inbox_message_is_handled_once_on_a_store() {
    let store = TestStore::quick_sqlite();
    let url = store.url();
    run(hapax().args(["migrate", "--store", &url]));
    a_message_is_handled_once(|arguments| {
        run(hapax().arg("inbox").args(arguments).args(["--store", &url]))
    });
}
