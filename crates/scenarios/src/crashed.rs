//! What must hold of a pool that has only crashed, by its own account: of an audit, and of a check.

use crate::blocks::Judge;
use crate::hot_pool::Plan;
use base::Rng;
use engine::{CheckOptions, CheckReport, Finding, Pool, PoolDevices, Severity};
use reactor::Reactor;
use std::rc::Rc;

pub(crate) async fn check(
    reactor: &Rc<Reactor>,
    devices: &PoolDevices,
    options: CheckOptions,
) -> Result<CheckReport, String> {
    let report = Pool::check(reactor, &devices.capacity, Some(&devices.log), options).await;
    report.map_err(|error| format!("the pool cannot be checked: {error}"))
}

/// A check finds nothing wrong.
pub(crate) fn judge_report(judge: &Judge, plan: &Plan, report: &CheckReport) {
    // A crash may tear one of two copies where the media write less than a block at once.
    let tears = plan.mapped || plan.block_size < 4096;
    let torn = |finding: &Finding| tears && finding.meaning.ends_with("the other copy is valid");
    let is_wrong = |finding: &&Finding| finding.severity > Severity::Note && !finding.repaired && !torn(finding);
    let wrong = report.findings.iter().find(is_wrong);
    judge.expect(wrong.is_none() && report.findings_left_off == 0, || {
        format!("a check of a pool that only crashed finds: {}", wrong.expect("fewer than are listed"))
    });
}

/// Whatever the crash was, and however much is looked at, a check finds nothing wrong; after repairs it finds nothing to repair.
pub(crate) async fn check_somehow(
    judge: &Judge,
    plan: &Plan,
    reactor: &Rc<Reactor>,
    devices: &PoolDevices,
    rng: &mut Rng,
) -> Result<(), String> {
    let options = CheckOptions { payloads: rng.one_in(2), data: rng.one_in(4), repair: rng.one_in(2) };
    let report = check(reactor, devices, options).await?;
    judge_report(judge, plan, &report);
    if options.repair {
        let again = check(reactor, devices, CheckOptions { repair: false, ..options }).await?;
        judge_report(judge, plan, &again);
        let left = again.findings.iter().find(|finding| finding.advice.contains("repair"));
        judge.expect(left.is_none(), || format!("after repairs a check still finds: {}", left.expect("just looked")));
    }
    Ok(())
}

/// Nothing that the shards know contradicts itself.
pub(crate) async fn audit(judge: &Judge, reactor: &Rc<Reactor>, pool: &Pool) {
    let audit = match pool.audit(reactor).await {
        Ok(audit) => audit,
        Err(error) => return judge.expect(false, || format!("the audit fails: {error}")),
    };
    // Owners and catalog are not looked at in one moment, so that a volume may go in between.
    let problem = audit.problems.iter().find(|problem| problem.starts_with("shard"));
    judge.expect(problem.is_none(), || format!("the audit finds: {}", problem.expect("just looked")));
    audit_places(judge, reactor, pool).await;
}

/// In a shaped pool, map pages and bands say the same of where blocks are.
pub(crate) async fn audit_places(judge: &Judge, reactor: &Rc<Reactor>, pool: &Pool) {
    let problems = pool.audit_places(reactor).await;
    judge.expect(problems.is_empty(), || format!("the audit of places finds: {problems:?}"));
}
