//! Server-sent events, read line by line.

use std::time::Duration;

/// One event of a stream, or a `retry` alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) id: Option<String>,
    pub(super) event: String,
    pub(super) data: String,
    pub(super) retry: Option<Duration>,
}

/// The frame that is being read.
#[derive(Default)]
pub(super) struct Frames(Frame);

impl Frames {
    /// Takes a line; a frame where it ends one.
    pub(super) fn take(&mut self, line: &str) -> Option<Frame> {
        if line.is_empty() {
            let frame = std::mem::take(&mut self.0);
            return (frame != Frame::default()).then_some(frame);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        let frame = &mut self.0;
        match field {
            "id" if !value.contains('\0') => frame.id = Some(value.into()),
            "event" => frame.event = value.into(),
            "data" => {
                if !frame.data.is_empty() {
                    frame.data.push('\n');
                }
                frame.data.push_str(value);
            }
            "retry" => frame.retry = value.parse().ok().map(Duration::from_millis),
            // A comment keeps the connection alive, and anything else is not for us.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_the_standard_says() {
        let text = "retry: 1500\n\n: alive\n\nid: 7-1\nevent: vision\ndata: {\ndata:}\n\nid: 7-2\n";
        let mut frames = Frames::default();
        let read: Vec<_> = text.lines().filter_map(|line| frames.take(line)).collect();
        let retry = Frame { retry: Some(Duration::from_millis(1500)), ..Frame::default() };
        let event = Frame {
            id: Some("7-1".into()),
            event: "vision".into(),
            data: "{\n}".into(),
            retry: None,
        };
        assert_eq!(read, [retry, event], "what was cut off is no event");
    }
}
