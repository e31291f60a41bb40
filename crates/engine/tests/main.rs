//! Pools by what any caller sees of them, in virtual time and on memory.

mod check;
mod common;
mod copies;
mod emptied;
mod flatten;
mod forged;
mod forget;
mod golden;
mod hostile;
mod journal_lost;
mod log_end;
mod log_refuses;
mod meta;
mod pairs;
mod pieces;
mod pool;
mod removal;
mod settled;
mod shaped;
mod snapshots;
mod streams;
mod sweeps;
mod thousands;
mod upkeep;
mod versions;
mod written;
