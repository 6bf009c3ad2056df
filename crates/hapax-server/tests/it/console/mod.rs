//! The console in a real browser, on a real server: what its pages show is what the store says.

mod access;
mod deciding;
mod installation;
mod line;
mod lookup;
mod many_rows;
mod pictures;
mod scene;
mod scripts;
mod watching;
