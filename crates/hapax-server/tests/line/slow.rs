//! A way to a server on which every answer takes its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Ends with the test's runtime.
pub(crate) struct SlowWay {
    port: u16,
    delay: Arc<AtomicU64>,
}

impl SlowWay {
    /// To this port, and not slow yet.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let here = listener.local_addr().expect("bound").port();
        let delay = Arc::new(AtomicU64::new(0));
        tokio::spawn({
            let delay = delay.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(connect(client, port, delay.clone()));
                }
            }
        });
        Self { port: here, delay }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on an answer takes so long.
    pub(crate) fn delay(&self, time: Duration) {
        self.delay.store(time.as_millis() as u64, Ordering::SeqCst);
    }
}

async fn connect(client: TcpStream, port: u16, delay: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (mut questions, mut to_client) = client.into_split();
    let (mut answers, mut to_server) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut questions, &mut to_server).await });
    let mut bytes = [0; 65536];
    while let Ok(count @ 1..) = answers.read(&mut bytes).await {
        tokio::time::sleep(Duration::from_millis(delay.load(Ordering::SeqCst))).await;
        if to_client.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
