/** The errors of this package. Their messages never contain a key, a value or a token. */

/** The facts about an error beside its message. */
export interface ErrorDetails {
  /** The code at the end of the problem's `type`, such as `lock-held`. */
  code?: string | undefined
  /** The HTTP status of the answer, where there was one. */
  status?: number | undefined
  /** Whether the same call may succeed later and may safely be made again. */
  retryable?: boolean | undefined
  /** When to try again, where that is known. */
  retryAfterMs?: number | undefined
  cause?: unknown
}

/** The base of every error that this package throws. */
export class HapaxError extends Error {
  /** The code at the end of the problem's `type`, such as `lock-held`. */
  readonly code: string
  /** The HTTP status of the answer, where there was one. */
  readonly status: number | undefined
  /** Whether the same call may succeed later and may safely be made again. */
  readonly retryable: boolean
  /** When to try again, where that is known. */
  readonly retryAfterMs: number | undefined

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause })
    this.name = new.target.name
    this.code = details.code ?? "error"
    this.status = details.status
    this.retryable = details.retryable ?? false
    this.retryAfterMs = details.retryAfterMs
  }
}

/** Another owner has the lock, or another attempt is running. Try again later. */
export class Busy extends HapaxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "in-progress", retryable: true, ...details })
  }
}

/** The key was used for another request. Use a new key. */
export class KeyReused extends HapaxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "key-reused", ...details })
  }
}

/** Something may or may not have happened. Find out, then settle or release the command. */
export class OutcomeUnknown extends HapaxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "outcome-unknown", ...details })
  }
}

/** The lock or claim belongs to another owner now. Stop, and write nothing more. */
export class Lost extends HapaxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "claim-lost", ...details })
  }
}

/** The record is not at the expected version. Read it again. */
export class VersionMismatch extends HapaxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "version-mismatch", ...details })
  }
}

/** The server or its store cannot be reached, or has no room now. */
export class StoreUnavailable extends HapaxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "store-unavailable", retryable: true, ...details })
  }
}

/** The call is not valid: the message names the field, the limit and the fix. */
export class InvalidRequest extends HapaxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "invalid-request", ...details })
  }
}

/** The server refuses this token, or the token has not the scope that the call needs. */
export class AccessDenied extends HapaxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "forbidden", ...details })
  }
}

/** The address does not belong to a hapax server, or the server is older than this call. */
export class IncompatibleServer extends HapaxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "incompatible-server", ...details })
  }
}

/** The record, command or job does not exist. */
export class NotFound extends HapaxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "not-found", ...details })
  }
}

/** The log has another event with this identity, or the job is closed. */
export class EventRefused extends HapaxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "event-conflict", ...details })
  }
}

type ErrorClass = new (message: string, details?: ErrorDetails) => HapaxError

const CLASS_OF_CODE: Record<string, ErrorClass> = {
  "lock-held": Busy,
  "in-progress": Busy,
  "record-contended": Busy,
  "key-reused": KeyReused,
  "outcome-unknown": OutcomeUnknown,
  "lock-lost": Lost,
  "claim-lost": Lost,
  "version-mismatch": VersionMismatch,
  "record-missing": NotFound,
  "command-missing": NotFound,
  "job-missing": NotFound,
  "event-conflict": EventRefused,
  "job-closed": EventRefused,
  unauthorized: AccessDenied,
  forbidden: AccessDenied,
  "forwarded-request": AccessDenied,
  "not-found": IncompatibleServer,
  "method-not-allowed": IncompatibleServer,
}

const CLASS_OF_STATUS: Record<number, ErrorClass> = {
  400: InvalidRequest,
  401: AccessDenied,
  403: AccessDenied,
  404: IncompatibleServer,
  405: IncompatibleServer,
  408: StoreUnavailable,
  413: InvalidRequest,
  415: InvalidRequest,
  422: InvalidRequest,
  429: StoreUnavailable,
  431: InvalidRequest,
  502: StoreUnavailable,
  503: StoreUnavailable,
  504: StoreUnavailable,
}

const ADVICE = new Map<ErrorClass, string>([
  [AccessDenied, "pass a token of this server that has the scope of the call (`hapax token new`)"],
  [
    IncompatibleServer,
    "the server does not know this call: it is older than this package, or the address is not a hapax server's",
  ],
])

/** The fields of a problem document (RFC 9457) that are used here. */
export interface ProblemFields {
  type?: unknown
  title?: unknown
  detail?: unknown
  retryable?: unknown
  retry_after_ms?: unknown
}

/** The error for an answer that is not a success. `problem` is its JSON, where it has one. */
export function errorOfAnswer(status: number, problem: ProblemFields, retryAfterMs?: number): HapaxError {
  const code = typeof problem.type === "string" ? problem.type.slice(problem.type.lastIndexOf("/") + 1) : ""
  const kind = CLASS_OF_CODE[code] ?? CLASS_OF_STATUS[status] ?? HapaxError
  const said = [problem.title, problem.detail].filter((text) => typeof text === "string" && text !== "")
  const message = [...(said.length > 0 ? said : [`the server answered with status ${status}`]), ADVICE.get(kind)]
  const details: ErrorDetails = {
    code: code === "" ? `status-${status}` : code,
    status,
    retryAfterMs: typeof problem.retry_after_ms === "number" ? problem.retry_after_ms : retryAfterMs,
  }
  if (typeof problem.retryable === "boolean") details.retryable = problem.retryable
  return new kind(message.filter(Boolean).join("; "), details)
}
