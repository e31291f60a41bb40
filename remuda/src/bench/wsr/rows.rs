//! The ten rows of the seed's table and one more: what is loaded, what the seed says, and what an independent model of the same
//! rules gave.

/// How units are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Access {
    /// Each job its own part of the space, around again at its end.
    Sequential,
    /// Aligned units, each equally likely.
    Uniform,
    /// Some units far more likely than others.
    Zipf(f64),
}

/// Jobs that do the same.
#[derive(Clone, Copy, Debug)]
pub struct Jobs {
    pub count: u64,
    pub bytes: u64,
    pub access: Access,
}

impl Jobs {
    /// Operations under way of each job.
    pub fn depth(&self) -> u64 {
        if self.bytes < 64 << 10 { 4 } else { 1 }
    }

    fn describe(&self, what: &str) -> String {
        let access = match self.access {
            Access::Sequential => "seq".to_string(),
            Access::Uniform => "rnd".to_string(),
            Access::Zipf(theta) => format!("zipf {theta}"),
        };
        format!("{} {}K {access} {what}", self.count, self.bytes >> 10)
    }
}

/// MB/s per job: writes, and reads where there are any.
#[derive(Clone, Copy, Debug)]
pub struct Rate(pub f64, pub Option<f64>);

pub struct Row {
    pub number: u64,
    pub writers: Jobs,
    pub readers: Option<Jobs>,
    /// None for rows that the seed does not have.
    pub others: Option<Others>,
}

/// What others have for a row.
pub struct Others {
    /// As printed in the seed: QLC drive, in-place cache, write shaping.
    pub seed: [Rate; 3],
    /// Another implementation of the same model, 16 GiB: drive, in-place cache, write shaping with greedy victims.
    pub reference: [Rate; 3],
}

impl Row {
    pub fn load(&self) -> String {
        self.loads().join(" + ")
    }

    /// What writes, and what reads if anything does.
    pub fn loads(&self) -> Vec<String> {
        let readers = self.readers.iter().map(|readers| readers.describe("read"));
        [self.writers.describe("write")].into_iter().chain(readers).collect()
    }
}

const K4: u64 = 4 << 10;
const K64: u64 = 64 << 10;

const fn jobs(count: u64, bytes: u64, access: Access) -> Jobs {
    Jobs { count, bytes, access }
}

const fn w(rate: f64) -> Rate {
    Rate(rate, None)
}

const fn wr(write: f64, read: f64) -> Rate {
    Rate(write, Some(read))
}

use Access::{Sequential, Uniform, Zipf};

/// The last one is what a log before bands is to save flash with.
pub const ROWS: [Row; 11] = [
    Row {
        number: 1,
        writers: jobs(8, K64, Sequential),
        readers: None,
        others: Some(Others { seed: [w(390.0), w(400.0), w(400.0)], reference: [w(398.0), w(393.0), w(398.0)] }),
    },
    Row {
        number: 2,
        writers: jobs(8, K64, Uniform),
        readers: None,
        others: Some(Others { seed: [w(60.0), w(120.0), w(107.0)], reference: [w(53.9), w(59.1), w(160.0)] }),
    },
    Row {
        number: 3,
        writers: jobs(8, K64, Zipf(0.8)),
        readers: None,
        others: Some(Others { seed: [w(60.0), w(107.0), w(129.0)], reference: [w(51.6), w(88.0), w(128.0)] }),
    },
    Row {
        number: 4,
        writers: jobs(8, K64, Zipf(1.2)),
        readers: None,
        others: Some(Others { seed: [w(60.0), w(205.0), w(487.0)], reference: [w(90.9), w(596.0), w(509.0)] }),
    },
    Row {
        number: 5,
        writers: jobs(8, K4, Sequential),
        readers: None,
        others: Some(Others { seed: [w(5.0), w(83.0), w(388.0)], reference: [w(3.7), w(26.8), w(276.0)] }),
    },
    Row {
        number: 6,
        writers: jobs(8, K4, Uniform),
        readers: None,
        others: Some(Others { seed: [w(3.0), w(12.0), w(105.0)], reference: [w(3.3), w(3.5), w(152.0)] }),
    },
    Row {
        number: 7,
        writers: jobs(4, K64, Uniform),
        readers: Some(jobs(4, K64, Uniform)),
        others: Some(Others {
            seed: [wr(170.0, 100.0), wr(107.0, 89.0), wr(190.0, 250.0)],
            reference: [wr(107.0, 35.0), wr(118.0, 15.0), wr(297.0, 326.0)],
        }),
    },
    Row {
        number: 8,
        writers: jobs(4, K64, Zipf(0.8)),
        readers: Some(jobs(4, K64, Uniform)),
        others: Some(Others {
            seed: [wr(170.0, 60.0), wr(191.0, 89.0), wr(264.0, 250.0)],
            reference: [wr(103.0, 35.0), wr(178.0, 15.0), wr(249.0, 118.0)],
        }),
    },
    Row {
        number: 9,
        writers: jobs(4, K4, Sequential),
        readers: Some(jobs(4, K4, Uniform)),
        others: Some(Others {
            seed: [wr(4.0, 5.0), wr(6.0, 5.0), wr(118.0, 118.0)],
            reference: [wr(3.8, 111.0), wr(36.0, 19.0), wr(497.0, 99.0)],
        }),
    },
    Row {
        number: 10,
        writers: jobs(7, K4, Uniform),
        readers: Some(jobs(1, K64, Uniform)),
        others: Some(Others {
            seed: [wr(4.0, 45.0), wr(5.0, 74.0), wr(108.0, 250.0)],
            reference: [wr(3.8, 91.0), wr(4.0, 4.4), wr(152.0, 236.0)],
        }),
    },
    Row { number: 11, writers: jobs(8, K4, Zipf(1.2)), readers: None, others: None },
];
