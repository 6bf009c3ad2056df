//! Runs the example as its README describes.

use std::process::Command;

#[test]
fn every_order_becomes_one_invoice_whichever_part_is_killed() {
    let orders = (150 * hapax_testkit::scale()).to_string();
    let ran = Command::new(env!("CARGO_BIN_EXE_order-flow")).args(["--orders", &orders]).output();
    let ran = ran.expect("it starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("every order became one invoice"), "{said}");
}
