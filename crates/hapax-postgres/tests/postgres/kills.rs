//! `kill -9` in the middle of work: nothing that was acknowledged is lost, and no fence comes twice.
