// Generated from the server's /openapi.json by generate.mjs; `./test.sh --update` writes it anew.

export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        BeginCommand: {
            fingerprint?: string;
            /**
             * Format: int64
             * @default 30000
             */
            lease_ms?: number;
            /**
             * Format: int64
             * @default 86400000
             */
            retention_ms?: number;
            /**
             * Format: int64
             * @default 0
             */
            wait_ms?: number;
            on_unknown?: components["schemas"]["OnUnknown"];
            label?: string;
        };
        BegunCommand: {
            state: string;
            token: string;
            /** Format: int64 */
            fence: number;
            /** Format: int32 */
            attempt: number;
        };
        CompleteCommand: {
            token: string;
            /** Format: int32 */
            status: number;
            headers?: Record<string, never>;
            body?: string;
            body_base64?: string;
        };
        CompletedCommand: components["schemas"]["ShownResponse"] & {
            state: string;
            /** Format: int64 */
            expires_in_ms: number;
        };
        EventInLog: {
            /** Format: int64 */
            offset: number;
            domain: string;
            job_id: string;
            stage: string;
            /** Format: int64 */
            seq: number;
            data: unknown;
            final?: boolean;
            timestamp: string;
        };
        JobState: {
            state: components["schemas"]["EventInLog"];
            /** Format: int64 */
            offset: number;
            /** Format: int64 */
            epoch: number;
            closed: boolean;
        };
        KnownMessage: {
            duplicate: boolean;
        };
        NewMessage: {
            token: string;
            /** Format: int64 */
            fence: number;
            /** Format: int32 */
            attempt: number;
        };
        /**
         * @default refuse
         * @enum {string}
         */
        OnUnknown: "refuse" | "rerun";
        ProblemDocument: {
            type: string;
            title: string;
            /** Format: int32 */
            status: number;
            detail: string;
            retryable: boolean;
            /** Format: int64 */
            retry_after_ms?: number;
        };
        PublishEvent: {
            domain: string;
            job_id: string;
            stage: string;
            /** Format: int64 */
            seq: number;
            data: unknown;
            /** @default false */
            final?: boolean;
            timestamp?: string;
        };
        PublishedEvent: {
            published: boolean;
            /** Format: int64 */
            offset: number;
            /** Format: int64 */
            epoch: number;
        };
        ReceiveMessage: {
            /**
             * Format: int64
             * @default 30000
             */
            lease_ms?: number;
            /**
             * Format: int64
             * @default 2592000000
             */
            retention_ms?: number;
            label?: string;
        };
        RenewLease: {
            token: string;
            /**
             * Format: int64
             * @default 30000
             */
            lease_ms?: number;
        };
        RenewLock: {
            token: string;
            /**
             * Format: int64
             * @default 5000
             */
            ttl_ms?: number;
        };
        ShownResponse: {
            /** Format: int32 */
            status: number;
            headers: Record<string, never>;
            body?: string;
            body_base64?: string;
        };
        TakeLock: {
            /**
             * Format: int64
             * @default 5000
             */
            ttl_ms?: number;
            /**
             * Format: int64
             * @default 0
             */
            wait_ms?: number;
            label?: string;
        };
        TakenLock: {
            token: string;
            /** Format: int64 */
            fence: number;
            /** Format: int64 */
            ttl_ms: number;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
