//! A TCP proxy that breaks connections on demand.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::ports::{PortTaken, with_free_port};
use crate::wait::wait_for;

/// How long a new connection, or a change of mind about new ones, may go unnoticed.
const POLL: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(60);

/// A wire between a client and a server on this machine, which tests cut, stall, and make lose
/// answers. Everything breaks when it is dropped.
pub struct Wire {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    upstream: SocketAddr,
    state: Mutex<State>,
    /// Woken up when a stall ends or a connection is cut.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    closing: bool,
    refusing: bool,
    listening: bool,
    requests_stalled: bool,
    answers_stalled: bool,
    /// How long each answer is held back.
    answers_late: Duration,
    /// Set while the next request that contains these bytes is to lose its answer.
    doomed_request: Option<Vec<u8>>,
    dropped_answers: usize,
    accepted: usize,
    cuts: usize,
    connections: HashMap<usize, Arc<Connection>>,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    loses_answer: AtomicBool,
    stranded: AtomicBool,
    cut: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Answer,
}

impl Wire {
    /// Listens on a free loopback port, and connects whoever comes to the given port.
    pub fn to(upstream_port: u16) -> Self {
        let (port, listener) = with_free_port(|port| {
            let listener = listen(port).map_err(|_| PortTaken)?;
            Ok((port, listener))
        });
        let shared = Arc::new(Shared {
            upstream: SocketAddr::from((Ipv4Addr::LOCALHOST, upstream_port)),
            state: Mutex::new(State { listening: true, ..State::default() }),
            changed: Condvar::new(),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept_connections(port, listener)
        });
        Self { port, shared, acceptor: Some(acceptor) }
    }

    /// The port to give to the client.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Closes all connections, in both directions, now. New ones are welcome.
    pub fn cut(&self) {
        let mut state = self.shared.state();
        state.cuts += 1;
        for connection in state.connections.values() {
            connection.cut();
        }
        self.shared.changed.notify_all();
    }

    /// Holds back all bytes, in both directions, on old and new connections.
    pub fn stall(&self) {
        let mut state = self.shared.state();
        state.requests_stalled = true;
        state.answers_stalled = true;
    }

    /// From now on nothing is heard any more on the connections that there are, in either direction,
    /// for ever; nothing closes them either. New ones are welcome. So it is where a firewall has
    /// forgotten a connection.
    pub fn strand(&self) {
        for connection in self.shared.state().connections.values() {
            connection.stranded.store(true, Ordering::SeqCst);
        }
    }

    /// Lets requests through, and holds back the answers.
    pub fn stall_answers(&self) {
        self.shared.state().answers_stalled = true;
    }

    /// Lets requests through, and holds back each answer for this long: a server that is slow.
    pub fn slow_answers(&self, late: Duration) {
        self.shared.state().answers_late = late;
        self.shared.changed.notify_all();
    }

    /// Ends [`stall`](Self::stall), [`stall_answers`](Self::stall_answers) and
    /// [`slow_answers`](Self::slow_answers); what was held back goes on its way.
    pub fn flow(&self) {
        let mut state = self.shared.state();
        state.requests_stalled = false;
        state.answers_stalled = false;
        state.answers_late = Duration::ZERO;
        self.shared.changed.notify_all();
    }

    /// Lets the next request through, and cuts its connection as soon as the answer comes: the
    /// server has done the work, and the client does not know.
    pub fn drop_next_answer(&self) {
        self.drop_next_answer_to(b"");
    }

    /// Like [`drop_next_answer`](Self::drop_next_answer), for the next request that contains
    /// these bytes: a client may have other things to say first. Only bytes that arrive together
    /// are searched, which small requests do.
    pub fn drop_next_answer_to(&self, request: &[u8]) {
        self.shared.state().doomed_request = Some(request.to_vec());
    }

    /// How many answers were dropped, so that a test can tell that its fault has happened.
    pub fn dropped_answers(&self) -> usize {
        self.shared.state().dropped_answers
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.state().accepted
    }

    /// Refuses new connections, as if nothing listened. Old ones stay.
    pub fn refuse(&self) {
        self.shared.state().refusing = true;
        wait_for("the wire stops listening", PATIENCE, || {
            (!self.shared.state().listening).then_some(())
        });
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.shared.state().refusing = false;
        wait_for("the wire listens again", PATIENCE, || {
            self.shared.state().listening.then_some(())
        });
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        // Afterwards, so that the acceptor cannot have added one more.
        self.cut();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Refusing means to close the listener: only then does the kernel turn clients away.
    fn accept_connections(self: Arc<Self>, port: u16, listener: TcpListener) {
        let mut listener = Some(listener);
        loop {
            let mut state = self.state();
            if state.closing {
                return;
            }
            if state.refusing {
                listener = None;
            } else if listener.is_none() {
                listener = listen(port).ok();
            }
            state.listening = listener.is_some();
            drop(state);
            match listener.as_ref().map(TcpListener::accept) {
                Some(Ok((client, _))) => self.serve(client),
                Some(Err(error)) if error.kind() != ErrorKind::WouldBlock => listener = None,
                _ => thread::sleep(POLL),
            }
        }
    }

    fn serve(self: &Arc<Self>, client: TcpStream) {
        let (number, cuts) = {
            let mut state = self.state();
            state.accepted += 1;
            (state.accepted, state.cuts)
        };
        let shared = Arc::clone(self);
        // In a thread of its own from the start: connecting may take time.
        thread::spawn(move || {
            let Ok(server) = TcpStream::connect_timeout(&shared.upstream, PATIENCE) else {
                return;
            };
            let ready = client.set_nonblocking(false).is_ok()
                && client.set_nodelay(true).is_ok()
                && server.set_nodelay(true).is_ok();
            let connection = Arc::new(Connection {
                client,
                server,
                loses_answer: AtomicBool::new(false),
                stranded: AtomicBool::new(false),
                cut: AtomicBool::new(!ready),
            });
            {
                let mut state = shared.state();
                // What was cut while it was being made is cut as well.
                if state.closing || state.cuts != cuts {
                    return;
                }
                state.connections.insert(number, Arc::clone(&connection));
            }
            let answers = thread::spawn({
                let (shared, connection) = (Arc::clone(&shared), Arc::clone(&connection));
                move || shared.forward(&connection, Direction::Answer)
            });
            shared.forward(&connection, Direction::Request);
            let _ = answers.join();
            shared.state().connections.remove(&number);
        });
    }

    fn forward(&self, connection: &Connection, direction: Direction) {
        let (mut from, mut to) = match direction {
            Direction::Request => (&connection.client, &connection.server),
            Direction::Answer => (&connection.server, &connection.client),
        };
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let bytes = match from.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => &buffer[..count],
            };
            if !self.may_pass(connection, direction, bytes) || to.write_all(bytes).is_err() {
                connection.cut();
                return;
            }
        }
        // The sender may have said all it has to say and still listen.
        let _ = to.shutdown(Shutdown::Write);
    }

    /// Waits while the wire is stalled or slow, and decides about lost answers.
    fn may_pass(&self, connection: &Connection, direction: Direction, bytes: &[u8]) -> bool {
        let since = Instant::now();
        let mut state = self.state();
        loop {
            if state.closing || connection.cut.load(Ordering::SeqCst) {
                return false;
            }
            let (stalled, late) = match direction {
                Direction::Request => (state.requests_stalled, Duration::ZERO),
                Direction::Answer => (state.answers_stalled, state.answers_late),
            };
            let stalled = stalled || connection.stranded.load(Ordering::SeqCst);
            let left = late.saturating_sub(since.elapsed());
            state = if stalled {
                self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner())
            } else if !left.is_zero() {
                let waited = self.changed.wait_timeout(state, left);
                waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
            } else {
                break;
            };
        }
        match direction {
            Direction::Request => {
                let doomed = state.doomed_request.as_deref();
                if doomed.is_some_and(|part| contains(bytes, part)) {
                    state.doomed_request = None;
                    connection.loses_answer.store(true, Ordering::SeqCst);
                }
                true
            }
            Direction::Answer => {
                let lost = connection.loses_answer.load(Ordering::SeqCst);
                state.dropped_answers += usize::from(lost);
                !lost
            }
        }
    }
}

impl Connection {
    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

fn listen(port: u16) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    // So that the acceptor notices when it has to stop.
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
}
