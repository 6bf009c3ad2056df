//! Those who wait for the same job, written to by one task: no task of their own, no timer, no
//! buffer. Whoever needs more than the next frames, or has no room for them, leaves the crowd and
//! is looked after alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use bytes::Bytes;
use hapax::Key;
use hapax::bus::{Frame, News, Ready};
use hapax::log::Cursor;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::socket::{Socket, advance};
use super::source::Framing;
use super::stream::{Ended, KEEP_ALIVE, Stream};

/// How many are in one crowd; a job with more has several, on several cores.
const MOST: usize = 1024;
/// After how many of them others get their turn.
const TURN: usize = 128;

/// All crowds of a server.
#[derive(Default)]
pub(super) struct Crowds(Mutex<HashMap<Key, Vec<Arc<Door>>>>);

/// The way into a crowd.
#[derive(Default)]
struct Door {
    hall: Mutex<Hall>,
    knock: Notify,
}

#[derive(Default)]
struct Hall {
    /// Who has come, and is not in the crowd yet.
    newcomers: Vec<Member>,
    /// Whose connection may have something to say.
    stirred: Vec<usize>,
    /// How many there are in all.
    count: usize,
}

impl Door {
    fn hall(&self) -> MutexGuard<'_, Hall> {
        self.hall.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Member {
    socket: Socket,
    stream: Stream,
}

impl Crowds {
    fn table(&self) -> MutexGuard<'_, HashMap<Key, Vec<Arc<Door>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for what comes next together with others.
    pub(super) fn join(self: Arc<Self>, socket: Socket, stream: Stream) {
        let Some((job, news)) = stream.follower().map(|f| (f.job().clone(), f.news())) else {
            return;
        };
        let mut table = self.table();
        let doors = table.entry(job.clone()).or_default();
        let member = Member { socket, stream };
        if let Some(door) = doors.iter().find(|door| door.hall().count < MOST) {
            let mut hall = door.hall();
            hall.count += 1;
            hall.newcomers.push(member);
            door.knock.notify_one();
            return;
        }
        let door = Arc::new(Door::default());
        door.hall().count = 1;
        doors.push(door.clone());
        drop(table);
        let crowd = Crowd { crowds: self, job, door, news, members: Vec::new(), free: Vec::new() };
        tokio::spawn(crowd.run(member));
    }

    /// Closes the door of a crowd in which nobody is left; whether that is so.
    fn close(&self, job: &Key, door: &Arc<Door>) -> bool {
        let mut table = self.table();
        if door.hall().count > 0 {
            return false;
        }
        if let Some(doors) = table.get_mut(job) {
            doors.retain(|other| !Arc::ptr_eq(other, door));
            if doors.is_empty() {
                table.remove(job);
            }
        }
        true
    }
}

struct Crowd {
    crowds: Arc<Crowds>,
    job: Key,
    door: Arc<Door>,
    news: News,
    members: Vec<Option<Member>>,
    /// Places that nobody has.
    free: Vec<usize>,
}

impl Crowd {
    async fn run(mut self, first: Member) {
        let rules = first.stream.rules;
        let mut comment = Instant::now() + rules.keep_alive;
        self.admit(first);
        loop {
            let alarm = self.members.iter().flatten().filter_map(|member| member.stream.ends);
            let alarm = alarm.min().map_or(comment, |ends| ends.min(comment));
            tokio::select! {
                () = self.news.changed() => {
                    self.wave().await;
                    comment = Instant::now() + rules.keep_alive;
                }
                () = self.door.knock.notified() => self.open_door(),
                () = sleep_until(alarm) => {
                    self.dismiss_expired();
                    if comment <= Instant::now() {
                        self.keep_alive().await;
                        comment = Instant::now() + rules.keep_alive;
                    }
                }
            }
            if self.is_empty() && self.crowds.close(&self.job, &self.door) {
                return;
            }
        }
    }

    /// Sends everybody what is new to them. What comes meanwhile goes out with it to those whose turn
    /// is later: the more there is to do, the more goes into one call of the kernel.
    async fn wave(&mut self) {
        let mut batch = Batch::default();
        for place in 0..self.members.len() {
            if place % TURN == TURN - 1 {
                tokio::task::yield_now().await;
                batch = Batch::default();
            }
            let Some(member) = &mut self.members[place] else { continue };
            if let Sent::Part(left) = batch.send(member) {
                self.dismiss(place, left);
            }
        }
    }

    /// Writes a comment to everybody.
    async fn keep_alive(&mut self) {
        let comment = [Framing::Chunks.of(KEEP_ALIVE)];
        for place in 0..self.members.len() {
            if place % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
            let Some(member) = &mut self.members[place] else { continue };
            if let Sent::Part(left) = write(member, &comment) {
                self.dismiss(place, left);
            }
        }
    }

    /// Lets newcomers in, and looks after those who may have gone.
    fn open_door(&mut self) {
        let (newcomers, stirred) = {
            let mut hall = self.door.hall();
            (std::mem::take(&mut hall.newcomers), std::mem::take(&mut hall.stirred))
        };
        newcomers.into_iter().for_each(|member| self.admit(member));
        for place in stirred {
            self.look_at(place);
        }
    }

    fn admit(&mut self, mut member: Member) {
        // Where nobody was left, those who come now may follow another life of the job's feed.
        if let Some(follower) = member.stream.follower().filter(|_| self.is_empty()) {
            self.news = follower.news();
        }
        // What came while it was on its way.
        let sent = Batch::default().send(&mut member);
        let place = self.free.pop().unwrap_or_else(|| {
            self.members.push(None);
            self.members.len() - 1
        });
        self.members[place] = Some(member);
        match sent {
            Sent::All => self.look_at(place),
            Sent::Part(left) => self.dismiss(place, left),
        }
    }

    fn is_empty(&self) -> bool {
        self.members.len() == self.free.len()
    }

    /// Whether the client of this place is still there.
    fn look_at(&mut self, place: usize) {
        let Some(member) = self.members.get_mut(place).and_then(Option::as_mut) else { return };
        let waker = Waker::from(Arc::new(Stir { door: self.door.clone(), place }));
        if !member.socket.is_there(&mut Context::from_waker(&waker)) {
            member.stream.ended(Ended::Client);
            self.let_go(place);
        }
    }

    fn dismiss_expired(&mut self) {
        let now = Instant::now();
        for place in 0..self.members.len() {
            let ends = self.members[place].as_ref().and_then(|member| member.stream.ends);
            if ends.is_some_and(|ends| ends <= now) {
                self.dismiss(place, Vec::new());
            }
        }
    }

    /// Lets somebody go, who is looked after alone from now on.
    fn dismiss(&mut self, place: usize, left: Vec<Bytes>) {
        if let Some(Member { socket, stream }) = self.let_go(place) {
            tokio::spawn(socket.send(left, stream, self.crowds.clone()));
        }
    }

    fn let_go(&mut self, place: usize) -> Option<Member> {
        let member = self.members[place].take()?;
        self.free.push(place);
        self.door.hall().count -= 1;
        Some(member)
    }
}

/// Wakes a crowd for one of its members.
struct Stir {
    door: Arc<Door>,
    place: usize,
}

impl Wake for Stir {
    fn wake(self: Arc<Self>) {
        self.door.hall().stirred.push(self.place);
        self.door.knock.notify_one();
    }
}

/// What became of a write.
enum Sent {
    /// All of it is on its way.
    All,
    /// This is left, or something else is to be done for this member.
    Part(Vec<Bytes>),
}

/// What the members of a crowd get, who are mostly at the same place.
#[derive(Default)]
struct Batch {
    from: Option<Cursor>,
    frames: Vec<Frame>,
    pieces: Vec<Bytes>,
    /// Whether nothing is left after it.
    whole: bool,
}

impl Batch {
    fn send(&mut self, member: &mut Member) -> Sent {
        loop {
            let Some(follower) = member.stream.follower() else { return Sent::Part(Vec::new()) };
            if self.frames.is_empty() || self.from != follower.cursor() {
                match follower.ready() {
                    Ready::Frames(frames) => *self = Self::new(follower.cursor(), frames),
                    Ready::Nothing => return Sent::All,
                    Ready::Ask => return Sent::Part(Vec::new()),
                }
            }
            member.stream.delivered(&self.frames);
            if let Sent::Part(left) = write(member, &self.pieces) {
                return Sent::Part(left);
            }
            self.whole = self.whole || member.stream.is_idle();
            if self.whole {
                return Sent::All;
            }
        }
    }

    fn new(from: Option<Cursor>, frames: Vec<Frame>) -> Self {
        let pieces = frames.iter().map(Frame::chunk).collect();
        Self { from, frames, pieces, whole: false }
    }
}

fn write(member: &mut Member, pieces: &[Bytes]) -> Sent {
    let all: usize = pieces.iter().map(Bytes::len).sum();
    // Whatever is wrong with the connection is found out again by who looks after it alone.
    let written = member.socket.write_once(pieces).unwrap_or_default();
    if written == all {
        return Sent::All;
    }
    let mut left = pieces.to_vec();
    advance(&mut left, written);
    Sent::Part(left)
}
