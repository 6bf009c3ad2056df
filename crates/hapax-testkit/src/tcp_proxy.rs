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

/// The pause between two looks for a new connection or for a change of [`TcpProxy::refuse`].
const POLL: Duration = Duration::from_millis(2);
const TIMEOUT: Duration = Duration::from_secs(60);

/// A TCP proxy between a client and a server on this machine. A test can close its connections, stall them, and drop
/// answers. All connections close when it is dropped.
pub struct TcpProxy {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    upstream: SocketAddr,
    state: Mutex<ProxyState>,
    /// Notified when a stall ends or a connection is cut.
    changed: Condvar,
}

#[derive(Default)]
struct ProxyState {
    closing: bool,
    refusing: bool,
    listening: bool,
    requests_stalled: bool,
    answers_stalled: bool,
    answer_delay: Duration,
    /// The answer to the next request that contains these bytes is dropped.
    drop_answer_to: Option<Vec<u8>>,
    dropped_answers: usize,
    accepted: usize,
    cuts: usize,
    connections: HashMap<usize, Arc<ProxiedConnection>>,
}

struct ProxiedConnection {
    client: TcpStream,
    server: TcpStream,
    drops_answer: AtomicBool,
    black_hole: AtomicBool,
    cut: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Answer,
}

impl TcpProxy {
    /// Listens on a free loopback port, and forwards connections to the given port.
    pub fn to(upstream_port: u16) -> Self {
        let (port, listener) = with_free_port(|port| {
            let listener = listen(port).map_err(|_| PortTaken)?;
            Ok((port, listener))
        });
        let shared = Arc::new(Shared {
            upstream: SocketAddr::from((Ipv4Addr::LOCALHOST, upstream_port)),
            state: Mutex::new(ProxyState { listening: true, ..ProxyState::default() }),
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

    /// Closes all connections now. New ones are accepted.
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

    /// Drops all further bytes of the present connections, in both directions, without closing them, as a firewall does
    /// that has forgotten a connection. New connections work.
    pub fn black_hole(&self) {
        for connection in self.shared.state().connections.values() {
            connection.black_hole.store(true, Ordering::SeqCst);
        }
    }

    /// Forwards requests, and holds the answers back.
    pub fn stall_answers(&self) {
        self.shared.state().answers_stalled = true;
    }

    /// Forwards requests, and holds each answer back for this long, as a slow server would.
    pub fn delay_answers(&self, delay: Duration) {
        self.shared.state().answer_delay = delay;
        self.shared.changed.notify_all();
    }

    /// Ends [`stall`](Self::stall), [`stall_answers`](Self::stall_answers) and
    /// [`delay_answers`](Self::delay_answers), and forwards what was held back.
    pub fn resume(&self) {
        let mut state = self.shared.state();
        state.requests_stalled = false;
        state.answers_stalled = false;
        state.answer_delay = Duration::ZERO;
        self.shared.changed.notify_all();
    }

    /// Forwards the next request, and cuts its connection when the answer comes: the server has done the work, and the
    /// client does not know.
    pub fn drop_next_answer(&self) {
        self.drop_next_answer_to(b"");
    }

    /// Like [`drop_next_answer`](Self::drop_next_answer), for the next request that contains these bytes. Only bytes that
    /// arrive together are searched, so the request has to be small.
    pub fn drop_next_answer_to(&self, request: &[u8]) {
        self.shared.state().drop_answer_to = Some(request.to_vec());
    }

    /// How many answers were dropped, so that a test can check that its fault has happened.
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
        wait_for("the proxy stops listening", TIMEOUT, || {
            (!self.shared.state().listening).then_some(())
        });
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.shared.state().refusing = false;
        wait_for("the proxy listens again", TIMEOUT, || {
            self.shared.state().listening.then_some(())
        });
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        // After the acceptor has ended, so that it adds no further connection.
        self.cut();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// To refuse connections the listener is closed, because only then the kernel rejects clients.
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
        // Connects in the new thread as well, because that may take time.
        thread::spawn(move || {
            let Ok(server) = TcpStream::connect_timeout(&shared.upstream, TIMEOUT) else {
                return;
            };
            let ready = client.set_nonblocking(false).is_ok()
                && client.set_nodelay(true).is_ok()
                && server.set_nodelay(true).is_ok();
            let connection = Arc::new(ProxiedConnection {
                client,
                server,
                drops_answer: AtomicBool::new(false),
                black_hole: AtomicBool::new(false),
                cut: AtomicBool::new(!ready),
            });
            {
                let mut state = shared.state();
                // A cut also applies to connections that are being made.
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

    fn forward(&self, connection: &ProxiedConnection, direction: Direction) {
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
        // The sender may have closed only its sending direction.
        let _ = to.shutdown(Shutdown::Write);
    }

    /// Waits while the proxy is stalled or slow, and decides about dropped answers.
    fn may_pass(&self, connection: &ProxiedConnection, direction: Direction, bytes: &[u8]) -> bool {
        let since = Instant::now();
        let mut state = self.state();
        loop {
            if state.closing || connection.cut.load(Ordering::SeqCst) {
                return false;
            }
            let (stalled, delay) = match direction {
                Direction::Request => (state.requests_stalled, Duration::ZERO),
                Direction::Answer => (state.answers_stalled, state.answer_delay),
            };
            let stalled = stalled || connection.black_hole.load(Ordering::SeqCst);
            let left = delay.saturating_sub(since.elapsed());
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
                let wanted = state.drop_answer_to.as_deref();
                if wanted.is_some_and(|part| contains(bytes, part)) {
                    state.drop_answer_to = None;
                    connection.drops_answer.store(true, Ordering::SeqCst);
                }
                true
            }
            Direction::Answer => {
                let dropped = connection.drops_answer.load(Ordering::SeqCst);
                state.dropped_answers += usize::from(dropped);
                !dropped
            }
        }
    }
}

impl ProxiedConnection {
    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

fn listen(port: u16) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    // Nonblocking, so that the acceptor notices when it has to stop.
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
}
