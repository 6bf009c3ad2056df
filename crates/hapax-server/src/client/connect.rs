use super::{Api, Failure};

/// Which server, and as whom.
#[derive(clap::Args, Clone)]
pub(crate) struct Connect {
    /// The server's address.
    #[arg(
        long,
        global = true,
        help_heading = "Server",
        env = "HAPAX_SERVER",
        value_name = "URL",
        default_value = "http://127.0.0.1:8787"
    )]
    pub(crate) server: String,
    /// An access token, where the server asks for one. The environment variable is the safer
    /// place: other users can see command lines.
    #[arg(
        long,
        global = true,
        help_heading = "Server",
        env = "HAPAX_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Option<String>,
    /// Print the server's JSON as it is.
    #[arg(long, global = true, help_heading = "Server")]
    pub(crate) json: bool,
}

impl Connect {
    /// A client of that server; nothing is sent yet.
    pub(crate) fn api(&self) -> Result<Api, Failure> {
        Api::new(&self.server, self.token.as_deref())
    }
}
