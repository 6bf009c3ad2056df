/** A frame of a `text/event-stream`. */
export interface Frame {
  id: string | undefined
  event: string
  data: string
  /** The pause before a new connection that the server asks for. */
  retryMs: number | undefined
}

/** The largest frame that is read: an event has at most 1 MiB by default. */
const MAX_FRAME = 16 * 1024 * 1024

/** Reads frames from the body of an event stream. Comments are frames without data, so that the reader sees signs of life. */
export async function* readFrames(body: ReadableStream<Uint8Array>): AsyncGenerator<Frame> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let rest = ""
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      rest += decoder.decode(value, { stream: true })
      // A carriage return at the end may be half of a line's end.
      const complete = rest.endsWith("\r") ? rest.slice(0, -1) : rest
      const blocks = complete.replace(/\r\n?/g, "\n").split("\n\n")
      rest = (blocks.pop() ?? "") + rest.slice(complete.length)
      if (rest.length > MAX_FRAME) throw new Error("an event of the stream is too large")
      for (const block of blocks) yield parseFrame(block)
    }
  } finally {
    reader.cancel().catch(() => {})
  }
}

function parseFrame(block: string): Frame {
  const frame: Frame = { id: undefined, event: "message", data: "", retryMs: undefined }
  const data: string[] = []
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":")
    const field = colon < 0 ? line : line.slice(0, colon)
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "")
    if (field === "data") data.push(value)
    else if (field === "id") frame.id = value
    else if (field === "event") frame.event = value
    else if (field === "retry" && /^\d+$/.test(value)) frame.retryMs = Number(value)
  }
  frame.data = data.join("\n")
  return frame
}
