//! Images: what a crash at some moment would leave on a node's media, without the crash.
//!
//! An image is a copy that shares what is the same, so that one life of a node yields thousands of them, each opened in a
//! world of its own.

use crate::disk::{CacheLoss, Disk};
use crate::faults::DiskFaults;
use crate::pages::{hash_bytes, mix};
use crate::pmem::Pmem;
use crate::state::{Crash, NodeId, State};
use base::Rng;

/// A node at one of its write boundaries.
pub struct Boundary<'a> {
    pub(crate) state: &'a State,
    pub(crate) node: NodeId,
}

/// The media of a node that has crashed.
#[derive(Clone)]
pub struct Image {
    disks: Vec<(String, Disk)>,
    pmems: Vec<(String, Pmem)>,
    hash: u64,
}

impl Image {
    /// Equal for equal contents: two images with the same hash are the same crash.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

impl Boundary<'_> {
    /// What this crash would leave, now. `loss` says what happens to the caches and to the operations under way.
    pub fn image(&self, crash: Crash, loss: CacheLoss, rng: &mut Rng) -> Image {
        let node = &self.state.nodes[self.node.0];
        let mut hash = 0;
        let mut disks = Vec::new();
        for (path, index) in &node.disks {
            let mut disk = self.state.disks[*index].0.clone();
            disk.locked_by = None;
            self.state.finish_on_copy(*index, &mut disk, loss, rng);
            if crash == Crash::PowerCut {
                disk.power_cut(loss, rng, self.state.mutated(crate::Mutation::TearInsideUnit));
            }
            hash = mix(hash_bytes(hash, path.as_bytes()), disk.hash());
            disks.push((path.clone(), disk));
        }
        let mut pmems = Vec::new();
        for (path, index) in &node.pmems {
            let mut pmem = self.state.pmems[*index].clone();
            pmem.orphan();
            if crash == Crash::PowerCut {
                pmem.power_cut(loss, rng);
            }
            hash = mix(hash_bytes(hash, path.as_bytes()), pmem.hash());
            pmems.push((path.clone(), pmem));
        }
        Image { disks, pmems, hash }
    }
}

impl State {
    pub(crate) fn add_image(&mut self, node: NodeId, image: &Image) {
        for (path, disk) in &image.disks {
            self.disks.push((disk.clone(), DiskFaults::default()));
            let old = self.nodes[node.0].disks.insert(path.clone(), self.disks.len() - 1);
            assert!(old.is_none(), "{path} exists on node {}", node.0);
        }
        for (path, pmem) in &image.pmems {
            self.pmems.push(pmem.clone());
            let old = self.nodes[node.0].pmems.insert(path.clone(), self.pmems.len() - 1);
            assert!(old.is_none(), "{path} exists on node {}", node.0);
        }
    }
}
