//! Identify data structures (Base 2.0, section 5.17.2; NVM Command Set 1.0, section 4.1.5).
//!
//! Every structure is 4096 bytes. Fields that Remuda leaves at zero are grouped in reserved arrays named for their offset.

use zerocopy::byteorder::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;
use super::nqn::NQN_FIELD_LEN;

/// Controller or Namespace Structure: which structure Identify returns (Base 2.0, figure 273).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cns {
    /// Namespace, NVM command set.
    Namespace = 0x00,
    /// Controller.
    Controller = 0x01,
    /// Active namespace list.
    ActiveNamespaces = 0x02,
    /// Namespace identification descriptors.
    NamespaceDescriptors = 0x03,
    /// Namespace, specific to a command set.
    CommandSetNamespace = 0x05,
    /// Controller, specific to a command set.
    CommandSetController = 0x06,
    /// Active namespace list of a command set.
    CommandSetActiveNamespaces = 0x07,
    /// Namespace, independent of the command set.
    IndependentNamespace = 0x08,
    /// I/O command sets.
    CommandSets = 0x1c,
}

impl Cns {
    /// Every structure named here.
    pub const ALL: [Cns; 9] = [
        Cns::Namespace,
        Cns::Controller,
        Cns::ActiveNamespaces,
        Cns::NamespaceDescriptors,
        Cns::CommandSetNamespace,
        Cns::CommandSetController,
        Cns::CommandSetActiveNamespaces,
        Cns::IndependentNamespace,
        Cns::CommandSets,
    ];

    /// The structure with this value, if it is named here.
    pub fn from_u8(value: u8) -> Option<Self> {
        Cns::ALL.into_iter().find(|cns| *cns as u8 == value)
    }
}

/// Command set identifier of the NVM command set (Base 2.0, section 5.17).
pub const CSI_NVM: u8 = 0;

/// Controller types (Base 2.0, figure 275, byte 111).
pub const CNTRLTYPE_IO: u8 = 1;
/// A discovery controller.
pub const CNTRLTYPE_DISCOVERY: u8 = 2;

/// CMIC bit 0: the subsystem may have several ports.
pub const CMIC_MULTIPLE_PORTS: u8 = 1;
/// CMIC bit 3: asymmetric namespace access is reported.
pub const CMIC_ANA: u8 = 1 << 3;
/// ANACAP: each of the five states may be reported, and a namespace stays in its group for as long as it is attached.
pub const ANACAP_ALL_STATES_FIXED_GROUP: u8 = 0x1f | 1 << 6;
/// CMIC bit 1: the subsystem may have several controllers.
pub const CMIC_MULTIPLE_CONTROLLERS: u8 = 1 << 1;
/// CTRATT bit 0: 128-bit host identifiers.
pub const CTRATT_HOST_ID_128: u32 = 1;
/// CTRATT bit 6: any traffic counts as keep alive.
pub const CTRATT_TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
/// LPA bit 1: commands supported and effects log.
pub const LPA_COMMAND_EFFECTS: u8 = 1 << 1;
/// LPA bit 2: extended data: offsets and long lengths.
pub const LPA_EXTENDED: u8 = 1 << 2;
/// LPA bit 5: supported log pages (miscellaneous log page support).
pub const LPA_MISCELLANEOUS: u8 = 1 << 5;
/// ONCS bit 0: Compare.
pub const ONCS_COMPARE: u16 = 1;
/// ONCS bit 1: Write Uncorrectable.
pub const ONCS_WRITE_UNCORRECTABLE: u16 = 1 << 1;
/// ONCS bit 2: Dataset Management.
pub const ONCS_DSM: u16 = 1 << 2;
/// ONCS bit 3: Write Zeroes.
pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
/// ONCS bit 4: the Save and Select fields of features.
pub const ONCS_FEATURE_SELECT: u16 = 1 << 4;
/// ONCS bit 5: reservations.
pub const ONCS_RESERVATIONS: u16 = 1 << 5;
/// ONCS bit 6: the Timestamp feature.
pub const ONCS_TIMESTAMP: u16 = 1 << 6;
/// ONCS bit 7: Verify.
pub const ONCS_VERIFY: u16 = 1 << 7;
/// ONCS bit 8: Copy.
pub const ONCS_COPY: u16 = 1 << 8;
/// CDFS bit 0: source ranges of descriptor format 0.
pub const CDFS_FORMAT_0: u16 = 1;
/// FUSES bit 0: Compare and Write.
pub const FUSES_COMPARE_AND_WRITE: u16 = 1;
/// VWC bit 0: a volatile write cache is present.
pub const VWC_PRESENT: u8 = 1;
/// VWC bits 2:1 = 11b: Flush accepts NSID FFFFFFFFh.
pub const VWC_FLUSH_ALL: u8 = 3 << 1;
/// SGLS bits 1:0 = 01b: SGLs, no alignment.
pub const SGLS_SUPPORTED: u32 = 1;
/// SGLS bit 20: the address may be an offset (in-capsule data).
pub const SGLS_OFFSET: u32 = 1 << 20;
/// SGLS bit 21: transport SGL data blocks.
pub const SGLS_TRANSPORT: u32 = 1 << 21;
/// OFCS bit 0: Disconnect and deletion of single I/O queues.
pub const OFCS_DISCONNECT: u16 = 1;

/// Identify Controller (Base 2.0, figure 275), power states reduced to the first. `cqt` is of Base 2.1, `ciu`, `cirn` and
/// `ccrl` (cross-controller reset) of Base 2.3; before, they were reserved and zero.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // The names are the specification's; the figure explains each.
pub struct IdentifyController {
    pub vid: U16,
    pub ssvid: U16,
    pub sn: [u8; 20],
    pub mn: [u8; 40],
    pub fr: [u8; 8],
    pub rab: u8,
    pub ieee: [u8; 3],
    pub cmic: u8,
    pub mdts: u8,
    pub cntlid: U16,
    pub ver: U32,
    pub rtd3r: U32,
    pub rtd3e: U32,
    pub oaes: U32,
    pub ctratt: U32,
    pub rrls: U16,
    pub reserved102: [u8; 9],
    pub cntrltype: u8,
    pub fguid: [u8; 16],
    pub crdt: [U16; 3],
    pub reserved134: u8,
    pub ciu: u8,
    pub cirn: U64,
    pub reserved144: [u8; 112],
    pub oacs: U16,
    pub acl: u8,
    pub aerl: u8,
    pub frmw: u8,
    pub lpa: u8,
    pub elpe: u8,
    pub npss: u8,
    pub avscc: u8,
    pub apsta: u8,
    pub wctemp: U16,
    pub cctemp: U16,
    pub mtfa: U16,
    pub hmpre: U32,
    pub hmmin: U32,
    pub tnvmcap: U128,
    pub unvmcap: U128,
    pub rpmbs: U32,
    pub edstt: U16,
    pub dsto: u8,
    pub fwug: u8,
    pub kas: U16,
    pub hctma: U16,
    pub mntmt: U16,
    pub mxtmt: U16,
    pub sanicap: U32,
    pub hmminds: U32,
    pub hmmaxd: U16,
    pub nsetidmax: U16,
    pub endgidmax: U16,
    pub anatt: u8,
    pub anacap: u8,
    pub anagrpmax: U32,
    pub nanagrpid: U32,
    pub reserved352: [u8; 34],
    pub cqt: U16,
    pub reserved388: [u8; 124],
    pub sqes: u8,
    pub cqes: u8,
    pub maxcmd: U16,
    pub nn: U32,
    pub oncs: U16,
    pub fuses: U16,
    pub fna: u8,
    pub vwc: u8,
    pub awun: U16,
    pub awupf: U16,
    pub icsvscc: u8,
    pub nwpc: u8,
    pub acwu: U16,
    pub cdfs: U16,
    pub sgls: U32,
    pub mnan: U32,
    pub reserved544: [u8; 224],
    pub subnqn: [u8; NQN_FIELD_LEN],
    pub reserved1024: [u8; 768],
    pub ioccsz: U32,
    pub iorcsz: U32,
    pub icdoff: U16,
    pub fcatt: u8,
    pub msdbd: u8,
    pub ofcs: U16,
    pub dctype: u8,
    pub ccrl: u8,
    pub reserved1808: [u8; 240],
    pub psd0: [u8; 32],
    pub reserved2080: [u8; 2016],
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<IdentifyController>() == IDENTIFY_LEN);
    assert!(offset_of!(IdentifyController, cmic) == 76);
    assert!(offset_of!(IdentifyController, ver) == 80);
    assert!(offset_of!(IdentifyController, oaes) == 92);
    assert!(offset_of!(IdentifyController, cntrltype) == 111);
    assert!(offset_of!(IdentifyController, ciu) == 135);
    assert!(offset_of!(IdentifyController, cirn) == 136);
    assert!(offset_of!(IdentifyController, oacs) == 256);
    assert!(offset_of!(IdentifyController, wctemp) == 266);
    assert!(offset_of!(IdentifyController, tnvmcap) == 280);
    assert!(offset_of!(IdentifyController, kas) == 320);
    assert!(offset_of!(IdentifyController, anatt) == 342);
    assert!(offset_of!(IdentifyController, cqt) == 386);
    assert!(offset_of!(IdentifyController, sqes) == 512);
    assert!(offset_of!(IdentifyController, nn) == 516);
    assert!(offset_of!(IdentifyController, vwc) == 525);
    assert!(offset_of!(IdentifyController, sgls) == 536);
    assert!(offset_of!(IdentifyController, subnqn) == 768);
    assert!(offset_of!(IdentifyController, ioccsz) == 1792);
    assert!(offset_of!(IdentifyController, ofcs) == 1804);
    assert!(offset_of!(IdentifyController, ccrl) == 1807);
    assert!(offset_of!(IdentifyController, psd0) == 2048);
};

/// NMIC bit 0: the namespace may be attached to several controllers.
pub const NMIC_SHARED: u8 = 1;
/// NSFEAT bit 0: thin provisioning.
pub const NSFEAT_THIN: u8 = 1;
/// NSFEAT bit 1: NAWUN, NAWUPF and NACWU are valid.
pub const NSFEAT_ATOMIC: u8 = 1 << 1;
/// NSFEAT bit 4: NPWG, NPWA, NPDG, NPDA and NOWS are valid.
pub const NSFEAT_OPTIMAL: u8 = 1 << 4;
/// DLFEAT: deallocated blocks read as zeroes, and Write Zeroes may deallocate.
pub const DLFEAT_ZERO: u8 = 1 | 1 << 3;

/// One LBA format (NVM Command Set 1.0, figure 98).
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct LbaFormat {
    pub ms: U16,
    pub lbads: u8,
    pub rp: u8,
}

/// Identify Namespace of the NVM command set (NVM Command Set 1.0, figure 97).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // The names are the specification's; the figure explains each.
pub struct IdentifyNamespace {
    pub nsze: U64,
    pub ncap: U64,
    pub nuse: U64,
    pub nsfeat: u8,
    pub nlbaf: u8,
    pub flbas: u8,
    pub mc: u8,
    pub dpc: u8,
    pub dps: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub dlfeat: u8,
    pub nawun: U16,
    pub nawupf: U16,
    pub nacwu: U16,
    pub nabsn: U16,
    pub nabo: U16,
    pub nabspf: U16,
    pub noiob: U16,
    pub nvmcap: U128,
    pub npwg: U16,
    pub npwa: U16,
    pub npdg: U16,
    pub npda: U16,
    pub nows: U16,
    pub mssrl: U16,
    pub mcl: U32,
    pub msrc: u8,
    pub reserved81: [u8; 11],
    pub anagrpid: U32,
    pub reserved96: [u8; 3],
    pub nsattr: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
    pub lbaf: [LbaFormat; 64],
    pub vendor: [u8; 3712],
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<IdentifyNamespace>() == IDENTIFY_LEN);
    assert!(offset_of!(IdentifyNamespace, nmic) == 30);
    assert!(offset_of!(IdentifyNamespace, nawun) == 34);
    assert!(offset_of!(IdentifyNamespace, nvmcap) == 48);
    assert!(offset_of!(IdentifyNamespace, npwg) == 64);
    assert!(offset_of!(IdentifyNamespace, anagrpid) == 92);
    assert!(offset_of!(IdentifyNamespace, nguid) == 104);
    assert!(offset_of!(IdentifyNamespace, eui64) == 120);
    assert!(offset_of!(IdentifyNamespace, lbaf) == 128);
};

/// Identify Namespace independent of the command set (Base 2.0, figure 280).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct IdentifyIndependentNamespace {
    pub nsfeat: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub anagrpid: U32,
    pub nsattr: u8,
    pub reserved9: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    pub nstat: u8,
    pub reserved15: [u8; 4081],
}

const _: () = {
    assert!(size_of::<IdentifyIndependentNamespace>() == IDENTIFY_LEN);
    assert!(core::mem::offset_of!(IdentifyIndependentNamespace, nstat) == 14);
};

/// NSFEAT bit 5 of the independent structure: no volatile write cache is present in this namespace.
pub const INDEPENDENT_NSFEAT_NO_VWC: u8 = 1 << 5;
/// NSTAT bit 0: ready.
pub const NSTAT_READY: u8 = 1;

/// Identify Controller specific to the NVM command set (NVM Command Set 1.0, figure 102).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct IdentifyNvmController {
    pub vsl: u8,
    pub wzsl: u8,
    pub wusl: u8,
    pub dmrl: u8,
    pub dmrsl: U32,
    pub dmsl: U64,
    pub reserved16: [u8; 4080],
}

const _: () = assert!(size_of::<IdentifyNvmController>() == IDENTIFY_LEN);

/// Namespace identifier types (Base 2.0, figure 277).
pub const NIDT_EUI64: u8 = 1;
/// NGUID.
pub const NIDT_NGUID: u8 = 2;
/// UUID.
pub const NIDT_UUID: u8 = 3;
/// Command set identifier.
pub const NIDT_CSI: u8 = 4;

/// Writes `text` left-aligned and padded with spaces, as serial and model numbers are (Base 2.0, section 1.4.2).
pub fn store_ascii(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (slot, byte) in field.iter_mut().zip(text.bytes()) {
        *slot = if byte.is_ascii_graphic() || byte == b' ' { byte } else { b'?' };
    }
}

/// Reads a padded ASCII field back.
pub fn load_ascii(field: &[u8]) -> String {
    let text: String =
        field.iter().map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { *byte as char } else { '?' }).collect();
    text.trim_end().to_owned()
}

/// Appends one namespace identification descriptor at `at`; returns where the next one goes (Base 2.0, figure 277).
pub fn store_descriptor(list: &mut [u8; IDENTIFY_LEN], at: usize, kind: u8, id: &[u8]) -> usize {
    let end = at + 4 + id.len();
    assert!(end <= IDENTIFY_LEN && id.len() <= 16, "four descriptors of at most 20 bytes fit");
    list[at] = kind;
    list[at + 1] = id.len() as u8;
    list[at + 4..end].copy_from_slice(id);
    end
}

/// Walks the descriptors of a list until its end or the first one that does not fit.
pub fn descriptors(list: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = list;
    core::iter::from_fn(move || {
        let (head, tail) = rest.split_at_checked(4)?;
        if head[0] == 0 || head[1] == 0 {
            return None;
        }
        let (id, tail) = tail.split_at_checked(usize::from(head[1]))?;
        rest = tail;
        Some((head[0], id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ascii_fields_are_padded_with_spaces_and_cleaned() {
        let mut field = [0u8; 8];
        store_ascii(&mut field, "ab\u{e9}");
        assert_eq!(&field, b"ab??    ");
        assert_eq!(load_ascii(&field), "ab??");
        store_ascii(&mut field, "0123456789");
        assert_eq!(&field, b"01234567");
    }

    #[test]
    fn descriptors_read_back_as_they_were_written() {
        let mut list = [0u8; IDENTIFY_LEN];
        let mut at = store_descriptor(&mut list, 0, NIDT_EUI64, &[1; 8]);
        at = store_descriptor(&mut list, at, NIDT_UUID, &[2; 16]);
        store_descriptor(&mut list, at, NIDT_CSI, &[CSI_NVM]);
        let found: Vec<_> = descriptors(&list).collect();
        assert_eq!(found, [(NIDT_EUI64, &[1u8; 8][..]), (NIDT_UUID, &[2u8; 16][..]), (NIDT_CSI, &[0u8][..])]);
    }

    proptest! {
        #[test]
        fn a_hostile_descriptor_list_ends(list: Vec<u8>) {
            prop_assert!(descriptors(&list).count() <= list.len());
        }
    }

    #[test]
    fn structures_are_found_by_their_number() {
        for cns in Cns::ALL {
            assert_eq!(Cns::from_u8(cns as u8), Some(cns));
        }
        assert_eq!(Cns::from_u8(0x04), None);
    }
}
