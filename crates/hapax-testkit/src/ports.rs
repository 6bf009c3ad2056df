//! Port numbers that parallel test processes do not share.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Mutex;

/// Below Linux's range for outgoing connections (from 32768 on), so that no client takes the
/// port while its server is down between a kill and a restart. A cluster node's bus listens
/// [`BUS_OFFSET`] higher, which is outside this range and still below the other.
const FIRST: u16 = 12_000;
const COUNT: u16 = 10_000;
const BUS_OFFSET: u16 = 10_000;

/// The reservations of this process, until it ends.
static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// An unused loopback TCP port that no other caller of this function, in any process, gets while this process lives. The
/// port plus 10000 is free as well.
///
/// The port is reserved by a UDP socket with the same number: UDP and TCP ports are independent, and the kernel closes
/// the socket however the process ends.
///
/// # Panics
///
/// When every port of the range is taken.
pub fn free_port() -> u16 {
    // A random start, so that parallel processes do not try the same ports in the same order.
    let random = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    let start = u16::from_le_bytes([random[0], random[1]]) % COUNT;
    (0..COUNT)
        .map(|step| FIRST + (start + step) % COUNT)
        .find(|port| reserve(*port))
        .unwrap_or_else(|| panic!("no free port from {FIRST} on, {COUNT} tried"))
}

fn reserve(port: u16) -> bool {
    let Ok(reservation) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) else {
        return false;
    };
    let unused = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    if !unused(port) || !unused(port + BUS_OFFSET) {
        return false;
    }
    RESERVED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(reservation);
    true
}

/// A program outside the tests took the port between its reservation and the server's start.
pub(crate) struct PortTaken;

/// Starts a server, and tries again with another port if the first one was taken.
pub(crate) fn with_free_port<T>(mut start: impl FnMut(u16) -> Result<T, PortTaken>) -> T {
    const ATTEMPTS: usize = 5;
    (0..ATTEMPTS)
        .find_map(|_| start(free_port()).ok())
        .unwrap_or_else(|| panic!("{ATTEMPTS} ports in a row were taken by other programs"))
}
