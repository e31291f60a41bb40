//! Memory that a front end shares: regions by guest address, mapped by whoever made them.
//!
//! Nothing here hands out references into it. What a guest can change at any time is only copied, by `vm-memory`, which
//! checks every range; an address outside is an error of the request that named it.

use std::sync::atomic::{AtomicU16, Ordering};
use vm_memory::bitmap::BS;
use vm_memory::{
    Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestMemoryRegionBytes, GuestRegionCollection,
    GuestUsize, MemoryRegionAddress, MmapRegion, VolatileMemory, VolatileSlice,
};

/// Most regions of one front end: what QEMU has at most.
pub const REGIONS_MAX: usize = 512;

/// Where a region is: in the guest, and in the front end's own address space (ring addresses are given in the latter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Guest address.
    pub guest: u64,
    /// The front end's address.
    pub user: u64,
    /// Length.
    pub bytes: u64,
}

/// One region: a part of a mapping.
#[derive(Debug)]
pub struct Region {
    map: MmapRegion,
    /// Where in the mapping it begins.
    inside: usize,
    place: Place,
}

impl Region {
    /// The part of `map` from `inside` on. `None` when it is empty, goes past the mapping, or wraps around.
    pub fn new(map: MmapRegion, inside: usize, place: Place) -> Option<Region> {
        let bytes = usize::try_from(place.bytes).ok()?;
        let fits = inside.checked_add(bytes).is_some_and(|end| end <= map.size());
        let wraps = place.guest.checked_add(place.bytes).is_none() || place.user.checked_add(place.bytes).is_none();
        (bytes > 0 && fits && !wraps).then_some(Region { map, inside, place })
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        self.place
    }
}

impl GuestMemoryRegion for Region {
    type B = ();

    fn len(&self) -> GuestUsize {
        self.place.bytes
    }

    fn start_addr(&self) -> GuestAddress {
        GuestAddress(self.place.guest)
    }

    fn bitmap(&self) -> BS<'_, ()> {}

    fn get_slice(
        &self,
        offset: MemoryRegionAddress,
        count: usize,
    ) -> Result<VolatileSlice<'_, BS<'_, ()>>, vm_memory::GuestMemoryError> {
        let outside = || vm_memory::GuestMemoryError::InvalidBackendAddress;
        let end = offset.raw_value().checked_add(count as u64).ok_or_else(outside)?;
        if end > self.place.bytes {
            return Err(outside());
        }
        Ok(self.map.get_slice(self.inside + offset.raw_value() as usize, count)?)
    }
}

impl GuestMemoryRegionBytes for Region {}

/// What a front end has shared at one time.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    regions: GuestRegionCollection<Region>,
}

/// An address that is not in the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// First byte.
    pub address: u64,
    /// Length.
    pub bytes: u64,
}

impl Memory {
    /// The regions, in any order; `None` when two overlap or there are too many.
    pub fn new(mut regions: Vec<Region>) -> Option<Memory> {
        if regions.is_empty() {
            return Some(Memory::default());
        }
        regions.sort_by_key(|region| region.place.guest);
        if regions.len() > REGIONS_MAX {
            return None;
        }
        Some(Memory { regions: GuestRegionCollection::from_regions(regions).ok()? })
    }

    /// This and one more region.
    pub fn with(&self, region: Region) -> Option<Memory> {
        if self.regions.num_regions() >= REGIONS_MAX {
            return None;
        }
        Some(Memory { regions: self.regions.insert_region(std::sync::Arc::new(region)).ok()? })
    }

    /// This without the region that is there.
    pub fn without(&self, place: Place) -> Option<Memory> {
        let there = self.regions.iter().find(|region| region.place == place)?;
        let (rest, _) = self.regions.remove_region(there.start_addr(), there.len()).ok()?;
        Some(Memory { regions: rest })
    }

    /// The guest address of an address of the front end; `bytes` from there on are in one region.
    pub fn translate(&self, user: u64, bytes: u64) -> Result<u64, Outside> {
        let holds = |place: &Place| {
            user.checked_sub(place.user).is_some_and(|at| at <= place.bytes && bytes <= place.bytes - at)
        };
        let place = self.regions.iter().map(Region::place).find(holds);
        place.map(|place| place.guest + (user - place.user)).ok_or(Outside { address: user, bytes })
    }

    /// Whether a range is there as a whole.
    pub fn check(&self, address: u64, bytes: u64) -> Result<(), Outside> {
        let there = usize::try_from(bytes).is_ok_and(|len| self.regions.check_range(GuestAddress(address), len));
        if there { Ok(()) } else { Err(Outside { address, bytes }) }
    }

    /// The memory at a range that lies in one region: all of it, nearly always. A range over several goes through `regions`.
    #[inline]
    fn slice(&self, address: u64, bytes: usize) -> Option<VolatileSlice<'_>> {
        let region = self.regions.find_region(GuestAddress(address))?;
        let at = address - region.place.guest;
        (bytes as u64 <= region.place.bytes - at)
            .then(|| region.map.get_slice(region.inside + at as usize, bytes).ok())?
    }

    /// Copies bytes out.
    #[inline]
    pub fn read(&self, address: u64, target: &mut [u8]) -> Result<(), Outside> {
        if let Some(slice) = self.slice(address, target.len()) {
            slice.copy_to(target);
            return Ok(());
        }
        let outside = Outside { address, bytes: target.len() as u64 };
        self.regions.read_slice(target, GuestAddress(address)).map_err(|_| outside)
    }

    /// Copies bytes in.
    #[inline]
    pub fn write(&self, address: u64, source: &[u8]) -> Result<(), Outside> {
        if let Some(slice) = self.slice(address, source.len()) {
            slice.copy_from(source);
            return Ok(());
        }
        let outside = Outside { address, bytes: source.len() as u64 };
        self.regions.write_slice(source, GuestAddress(address)).map_err(|_| outside)
    }

    /// Loads a number atomically; what was stored before it was stored is seen afterwards.
    #[inline]
    pub fn load_u16(&self, address: u64) -> Result<u16, Outside> {
        let slice = self.slice(address, size_of::<u16>());
        let loaded = slice.and_then(|slice| Some(slice.get_atomic_ref::<AtomicU16>(0).ok()?.load(Ordering::Acquire)));
        loaded.map(u16::from_le).ok_or(Outside { address, bytes: 2 })
    }

    /// Stores a number atomically, after everything that was stored before.
    #[inline]
    pub fn store_u16(&self, address: u64, value: u16) -> Result<(), Outside> {
        let slice = self.slice(address, size_of::<u16>());
        let place = slice.as_ref().and_then(|slice| slice.get_atomic_ref::<AtomicU16>(0).ok());
        place.map(|place| place.store(value.to_le(), Ordering::Release)).ok_or(Outside { address, bytes: 2 })
    }
}

impl Memory {
    /// Anonymous memory at guest address `guest`, for tests and simulations.
    pub fn anonymous(guest: u64, bytes: usize) -> Option<Memory> {
        let map = MmapRegion::new(bytes).ok()?;
        Memory::new(vec![Region::new(map, 0, Place { guest, user: guest, bytes: bytes as u64 })?])
    }
}
