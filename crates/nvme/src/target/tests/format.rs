//! Format NVM: what is offered, and who is refused.

use super::*;
use crate::spec::erase::{FNA_CRYPTO_ERASE, FNA_NO_BROADCAST, FormatCommand, OACS_FORMAT, SecureErase};
use crate::spec::identify::IdentifyController;
use crate::spec::log::{CommandEffectsLog, EFFECT_SUPPORTED};
use crate::spec::reservation::{
    AcquireAction, Keys, PersistenceChange, RegisterAction, ReservationCommand, ReservationType,
};
use crate::target::reservation::Request;
use zerocopy::FromBytes;

/// A subsystem whose namespace 2 can be erased, for the hosts of `mask`, beside namespace 1, which cannot.
fn bench(mask: Option<Mask>) -> Bench {
    let mut bench = Bench::new();
    let erasable = Namespace { crypto_erase: true, ..Namespace::new(12, 100, uuid::Uuid::from_u128(2)) };
    bench.target.add_masked_namespace(bench.subsystem, Some(2), erasable, mask).expect("new");
    bench
}

fn format(nsid: u32, command: FormatCommand) -> Sqe {
    let mut sqe = Sqe::new(AdminOpcode::FormatNvm as u8, 5, nsid);
    command.store(&mut sqe);
    sqe
}

impl Bench {
    /// Success where the caller is to carry it out.
    fn format(&mut self, controller: ControllerHandle, nsid: u32, command: FormatCommand) -> Status {
        match self.target.admin(self.now_ns, controller, &format(nsid, command), &[], &mut []) {
            AdminOutcome::Format => Status::SUCCESS,
            AdminOutcome::Complete { cqe, .. } => cqe.status().kind(),
            outcome => panic!("unexpected {outcome:?}"),
        }
    }

    /// OACS, FNA, and whether the effects log has the command.
    fn offer(&mut self, controller: ControllerHandle) -> (u16, u8, bool) {
        let (_, page) = self.admin(controller, command::identify(Cns::Controller, 0, 0)).expect("identified");
        let (id, _) = IdentifyController::ref_from_prefix(&page).expect("a page");
        let log = command::get_log_page(LogPage::CommandEffects, 0, 4096, false);
        let (_, page) = self.admin(controller, log).expect("read");
        let (log, _) = CommandEffectsLog::ref_from_prefix(&page).expect("a page");
        let effects = log.admin[AdminOpcode::FormatNvm as usize].get();
        (id.oacs.get(), id.fna, effects & EFFECT_SUPPORTED != 0)
    }
}

const CRYPTO: FormatCommand = FormatCommand::same(SecureErase::Crypto);

#[test]
fn a_controller_offers_to_format_when_its_host_sees_what_can_be() {
    let mut without = Bench::new();
    let controller = without.ready();
    assert_eq!(without.offer(controller), (0, 0, false));
    assert_eq!(without.format(controller, 1, CRYPTO), Status::INVALID_OPCODE);
    let discovery = without.ready_discovery();
    assert_eq!(without.format(discovery, 1, CRYPTO), Status::INVALID_OPCODE);

    let mut bench = bench(Some(std::sync::Arc::new([nqn("one")].into())));
    let (one, two) = (bench.connect_host("one", 1, &nqn("disk"), 0), bench.connect_host("two", 2, &nqn("disk"), 0));
    assert_eq!(bench.format(one, 2, CRYPTO), Status::COMMAND_SEQUENCE_ERROR, "not enabled");
    bench.enable(one);
    bench.enable(two);
    assert_eq!(bench.offer(one), (OACS_FORMAT, FNA_CRYPTO_ERASE | FNA_NO_BROADCAST, true));
    assert_eq!(bench.offer(two), (0, 0, false));
    assert_eq!(bench.format(one, 2, CRYPTO), Status::SUCCESS);
    assert_eq!(bench.format(two, 2, CRYPTO), Status::INVALID_OPCODE);
}

#[test]
fn a_format_keeps_the_format_and_names_one_namespace() {
    let mut bench = bench(None);
    let controller = bench.ready();
    for erase in [SecureErase::None, SecureErase::UserData, SecureErase::Crypto] {
        assert_eq!(bench.format(controller, 2, FormatCommand::same(erase)), Status::SUCCESS, "{erase:?}");
    }
    for (nsid, expected) in [(0, Status::INVALID_NAMESPACE), (3, Status::INVALID_NAMESPACE)] {
        assert_eq!(bench.format(controller, nsid, CRYPTO), expected);
    }
    assert_eq!(bench.format(controller, 0xffff_ffff, CRYPTO), Status::INVALID_FIELD, "as FNA says");
    for lba_format in [1, 15, 16, 63] {
        assert_eq!(bench.format(controller, 2, FormatCommand { lba_format, ..CRYPTO }), Status::INVALID_FORMAT);
    }
    for protection in 1..8 {
        assert_eq!(bench.format(controller, 2, FormatCommand { protection, ..CRYPTO }), Status::INVALID_FORMAT);
    }
    for erase in 3..8 {
        assert_eq!(bench.format(controller, 2, FormatCommand { erase, ..CRYPTO }), Status::INVALID_FIELD);
    }
    assert_eq!(bench.format(controller, 2, FormatCommand { reserved: 1, ..CRYPTO }), Status::INVALID_FIELD);
    // A namespace that is not encrypted.
    assert_eq!(bench.format(controller, 1, CRYPTO), Status::INVALID_FIELD);
    assert_eq!(bench.format(controller, 1, FormatCommand::same(SecureErase::None)), Status::INVALID_FORMAT);
}

#[test]
fn who_may_not_write_to_a_namespace_may_not_format_it() {
    let mut bench = bench(None);
    let one = bench.connect_host("one", 1, &nqn("disk"), 0);
    let two = bench.connect_host("two", 2, &nqn("disk"), 0);
    bench.enable(one);
    bench.enable(two);
    let reserve = |bench: &mut Bench, command, keys| {
        let planned = bench.target.plan_reservation(one, 2, &Request::Command(command, keys)).expect("planned");
        bench.target.commit_reservation(planned).expect("in force");
    };
    let register = RegisterAction::Register;
    let register =
        ReservationCommand::Register { action: register, ignore_key: false, persistence: PersistenceChange::Keep };
    reserve(&mut bench, register, Keys::new(0, 7));
    assert_eq!(bench.format(two, 2, CRYPTO), Status::SUCCESS, "registered is not reserved");
    let kind = ReservationType::WriteExclusive;
    reserve(&mut bench, ReservationCommand::Acquire { action: AcquireAction::Acquire, kind }, Keys::new(7, 0));
    assert_eq!(bench.format(two, 2, CRYPTO), Status::RESERVATION_CONFLICT);
    assert_eq!(bench.format(one, 2, CRYPTO), Status::SUCCESS);

    let states = AnaStates { everywhere: crate::spec::ana::AnaState::Inaccessible, ..AnaStates::default() };
    bench.target.set_ana(bench.subsystem, 1, states).expect("a group");
    assert_eq!(bench.format(one, 2, CRYPTO), Status::ANA_INACCESSIBLE);

    let mut bench = Bench::new();
    let locked = Namespace { crypto_erase: true, read_only: true, ..Namespace::new(12, 100, uuid()) };
    bench.target.add_namespace(bench.subsystem, Some(2), locked).expect("new");
    let controller = bench.ready();
    assert_eq!(bench.format(controller, 2, CRYPTO), Status::NAMESPACE_WRITE_PROTECTED);
}
