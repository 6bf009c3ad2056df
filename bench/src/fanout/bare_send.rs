//! The least that a delivery can cost: a server that writes each event to all sockets, and nothing else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::Context;

use crate::process::ANY_PORT;
use crate::say;

/// Serves until the process is ended.
pub(crate) fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind(ANY_PORT)?;
    say(format_args!("http://{}", listener.local_addr()?))?;
    let audience = Arc::new(Mutex::new(Audience::default()));
    for connection in listener.incoming() {
        let (connection, audience) = (connection?, audience.clone());
        // A thread for each publisher; that of a subscriber ends once it is one of the sockets.
        thread::spawn(move || serve_connection(connection, &audience));
    }
    Ok(())
}

#[derive(Default)]
struct Audience {
    sockets: Vec<TcpStream>,
    /// All events so far, with which later subscribers begin.
    events: Vec<u8>,
}

fn lock(audience: &Mutex<Audience>) -> MutexGuard<'_, Audience> {
    audience.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve_connection(connection: TcpStream, audience: &Mutex<Audience>) -> anyhow::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    for number in 1_u64.. {
        let Some(length) = read_head(&mut reader)? else {
            return subscribe(connection, &mut lock(audience));
        };
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        (&connection).write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")?;
        let mut event = format!("id: 1-{number}\nevent: vision\ndata: ").into_bytes();
        event.extend(body);
        event.extend(b"\n\n");
        let mut chunk = format!("{:x}\r\n", event.len()).into_bytes();
        chunk.extend(event);
        chunk.extend(b"\r\n");
        let mut audience = lock(audience);
        audience.events.extend_from_slice(&chunk);
        audience.sockets.retain_mut(|socket| socket.write_all(&chunk).is_ok());
    }
    Ok(())
}

/// Reads the head of a request; the length of its body, or `None` for a subscription.
fn read_head(reader: &mut impl BufRead) -> anyhow::Result<Option<usize>> {
    let mut length = None;
    loop {
        let mut line = String::new();
        anyhow::ensure!(reader.read_line(&mut line)? > 0, "disconnected");
        match line.trim_end().split_once(": ") {
            Some(("Content-Length", value)) => length = Some(value.parse().context("length")?),
            None if line == "\r\n" => return Ok(length),
            _ => {}
        }
    }
}

fn subscribe(mut socket: TcpStream, audience: &mut Audience) -> anyhow::Result<()> {
    socket.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    socket.write_all(&audience.events)?;
    audience.sockets.push(socket);
    Ok(())
}
