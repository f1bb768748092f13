/*
 * Two-phase ledger deletion as this project does it: PIP-186 with the departures of docs/pip-186.md.
 *
 * One topic's metadata node (the "owner") with a version, as a metadata store keeps it; ledgers with versions of their
 * own; records of ledgers to delete, and the messages that carry them; consumers that judge, delete and acknowledge.
 * Every effect is a step of its own, so anything may come between two of them: another consumer with the same message,
 * a marker that is early, late or dead, a broker that deletes the topic, a topic of the same name, a crash.
 *
 * Assumed about Pulsar:
 *   A1  A ledger is referenced for the first time before it reaches the age that the judgement asks for (`links`).
 *   A2  A plain marker, and a broker that works on a topic's deletion, has ended when the settle window ends
 *       (`windowEnds`; docs/decisions/0002-in-use-is-final.md says what remains).
 *   A3  A ledger that has left the list is not listed again by a broker that has loaded the topic since: BookKeeper
 *       never gives an id twice. One that has lost the topic's bundle before, and still has the topic loaded, writes
 *       its own list at the version it knows (`staleWrites`), until a topic of the same name exists.
 *   A4  A node's version grows with every change while the node exists; one that is created again may have any version.
 *
 * Rules and assumptions are left out one at a time by `Omitted`; each must then have a counterexample.
 * tests/model/alloy.py runs the commands; docs/reliability.md says what they mean.
 */
module two_phase_deletion

open util/ordering[Version] as version

sig Version {}

// --- the metadata store ----------------------------------------------------------------------------------------------

sig Ledger {
  var node: lone Version,                // its metadata; none: the ledger is gone
  var kept: set Version                  // versions whose judgement, with the bytes, is on the outcome topic
}
var sig Listed in Ledger {}              // referenced by the owner's node
var sig Linked in Ledger {}              // has ever been referenced
var sig Young in Ledger {}               // not yet of the age at which a ledger of its kind and state may go
var sig DeletedByUs in Ledger {}         // by a consumer, and not brought back since
one sig Owner { var at: lone Version }   // the node that may reference the ledgers; none: there is no such topic
one sig Stale { var knows: lone Version } // a broker that has lost the bundle and not closed the topic; none: closed
var sig Remembered in Ledger {}          // in the list that it holds in memory

// --- the first phase -------------------------------------------------------------------------------------------------

abstract sig Kind {}                     // what the record says about its marker (Unreferenced: there is none)
one sig Cas, Plain, Operation, Unreferenced extends Kind {}
abstract sig Stage {}
one sig Marked, Sent, Over extends Stage {}
sig Record {
  subject: one Ledger,
  kind: one Kind,
  var stage: lone Stage,                 // how far its marker is; none: it has not begun
  var marked: lone Version               // Cas: the version at which the list is to shrink
}
sig Forged in Record {}                  // does not say what the ledger's own metadata says
var sig Unlinked in Record {}            // its marker, or its operation's broker, took the ledger off the list
var sig DeadLetter in Record {}          // on the dead-letter topic
var sig Ended in Record {}               // a final outcome is durable

one sig TopicDeletion {}                 // the operation's node
var sig Running, Withdrawn in TopicDeletion {}
var sig BrokerAtWork in TopicDeletion {} // a broker carries out a request; the sidecar may not know
var sig Reborn in TopicDeletion {}       // the owner's node is another incarnation than the one that was marked

// --- topics and consumers --------------------------------------------------------------------------------------------

sig Message { var about: lone Record }
var sig Waiting in Message {}            // unacknowledged, on the system topic or its retry topic
var sig LastTry in Message {}            // the next failure makes it a dead letter
var sig SeenInUse in Message {}          // carries the time of the first look that found the ledger in use
var sig WindowOver in Message {}         // the settle window has passed since

abstract sig Phase {}
one sig Looked, Compared, Judged, ToSend, ToKeep, ToAcknowledge extends Phase {}
abstract sig Verdict {}
one sig Deleted, Gone, InUse, Refused, SentAgain, SentToDeadLetters extends Verdict {}
sig Consumer {
  var phase: lone Phase,
  var held: lone Message,
  var sawLedger: lone Version,
  var sawOwner: lone Version,
  var verdict: lone Verdict
}
var sig SawRunning, SawYoung, SawWindowOver, SawReference in Consumer {}

// --- one step: what happens, who does it, with what ------------------------------------------------------------------

abstract sig Action {}
one sig Nothing, Creates, Links, GrowsUp, ChangesOwner, ChangesLedger, TopicIsBorn, BringsBack,
  BundleMoves, StaleWrites,
  Marks, Sends, SendsTwice, Shrinks, MarkerEnds, WindowEnds,
  OperationBegins, BrokerIsAsked, BrokerDeletesLedger, BrokerRemovesTopic, BrokerStops, OperationEnds,
  Looks, Compares, Judges, Decides, GivesUpForNow, Deletes, SendsAgain, KeepsOutcome, Acknowledges, Dies,
  Redrives extends Action {}
one sig Now {
  var action: one Action,
  var who: lone Consumer,
  var record: lone Record,
  var message: lone Message,
  var target: lone Ledger
}
sig Omitted in Action {}                 // the steps that leave out what makes them safe

pred noInUseCheck { Compares in Omitted }
pred noFence { Deletes in Omitted }
pred noAgeCheck { GrowsUp in Omitted }
pred clockReadLast { Looks in Omitted }
pred listFirst { Sends in Omitted }
pred acknowledgeFirst { Acknowledges in Omitted }
pred judgementNotKept { Judges in Omitted }
pred inUseIsFinalAtOnce { Decides in Omitted }
pred slowLinker { Links in Omitted }     // A1 does not hold
pred writesAtAnyVersion { StaleWrites in Omitted }

fun byConsumers: set Action {
  Looks + Compares + Judges + Decides + GivesUpForNow + Deletes + SendsAgain + KeepsOutcome + Acknowledges + Dies
}
fun aboutRecords: set Action { Marks + Sends + SendsTwice + MarkerEnds + Redrives }
fun aboutLedgers: set Action { Creates + Links + GrowsUp + ChangesLedger + BringsBack + BrokerDeletesLedger }
fun publishing: set Action { Sends + SendsTwice + Redrives }
fun final: set Verdict { Deleted + Gone + InUse + Refused }

/** Which action changes what; everything else stays. */
pred frame {
  let a = Now.action {
    a in byConsumers iff some Now.who
    a in aboutRecords iff some Now.record
    a in aboutLedgers iff some Now.target
    a in publishing + WindowEnds + Looks implies some Now.message
    a not in publishing + WindowEnds + Looks + SendsAgain implies no Now.message

    a in Creates + ChangesLedger + BringsBack + BrokerDeletesLedger + Deletes or node' = node
    a in Judges or kept' = kept
    a in Links + ChangesOwner + TopicIsBorn + StaleWrites + Shrinks + BrokerRemovesTopic or at' = at
    a in Links + TopicIsBorn + StaleWrites + Shrinks + BrokerRemovesTopic or Listed' = Listed
    a in BundleMoves + StaleWrites + TopicIsBorn or (knows' = knows and Remembered' = Remembered)
    a in Links + TopicIsBorn or Linked' = Linked
    a in Creates + GrowsUp or Young' = Young
    a in BringsBack + Deletes or DeletedByUs' = DeletedByUs

    a in Marks + Sends + Shrinks + MarkerEnds or stage' = stage
    a in Marks or marked' = marked
    a in Shrinks + BrokerRemovesTopic or Unlinked' = Unlinked
    a in SendsAgain + Redrives or DeadLetter' = DeadLetter
    a in KeepsOutcome or Ended' = Ended
    a in OperationBegins + OperationEnds or (Running' = Running and Withdrawn' = Withdrawn)
    a in BrokerIsAsked + BrokerStops or BrokerAtWork' = BrokerAtWork
    a in TopicIsBorn or Reborn' = Reborn

    let written = (a in publishing + SendsAgain => Now.message else none) {
      all m: Message - written | m.about' = m.about
      LastTry' - written = LastTry - written
      SeenInUse' - written = SeenInUse - written
      a = WindowEnds or WindowOver' - written = WindowOver - written
      a = Acknowledges or Waiting' - written = Waiting - written
    }
    all c: Consumer {
      c = Now.who or c.phase' = c.phase
      no c.phase' implies no c.held' and no c.sawLedger' and no c.sawOwner' and no c.verdict'
        and c not in SawRunning' + SawYoung' + SawWindowOver' + SawReference'
      some c.phase' and not (c = Now.who and a = Looks) implies c.held' = c.held and c.sawLedger' = c.sawLedger
        and (c in SawRunning' iff c in SawRunning) and (c in SawYoung' iff c in SawYoung)
        and (c in SawWindowOver' iff c in SawWindowOver)
      some c.phase' and not (c = Now.who and a in Looks + Compares) implies c.sawOwner' = c.sawOwner
        and (c in SawReference' iff c in SawReference)
      some c.phase' and not (c = Now.who and a in Looks + Decides + GivesUpForNow + Deletes + SendsAgain)
        implies c.verdict' = c.verdict
    }
  }
}
pred ownerChanges { some Owner.at and some Owner.at' and Owner.at' in version/nexts[Owner.at] }
pred free[m: Message] { m not in Waiting and no held.m }
/** A message that is in nobody's hands takes up a record. */
pred publishes[m: Message, r: Record] { free[m] and m in Waiting' and m.about' = r }
pred publishesAnew[m: Message, r: Record] {
  publishes[m, r] and m not in LastTry' + SeenInUse' + WindowOver'
}

// --- brokers and bookies, which know nothing of this ----------------------------------------------------------------------

pred creates[l: Ledger] {
  no l.node and no l.kept and l not in Linked + Young and no subject.l.stage
  some l.node' and all other: Ledger - l | other.node' = other.node
  Young' = Young + l
}
/** A1. Whether the ledger still exists is not looked at: its writer believes so. */
pred links[l: Ledger] {
  l not in Linked and some l.(node + kept) and (l in Young or slowLinker)
  ownerChanges and Listed' = Listed + l and Linked' = Linked + l
}
pred growsUp[l: Ledger] { l in Young and Young' = Young - l }
pred changesLedger[l: Ledger] {
  some l.node and some l.node' and l.node' in version/nexts[l.node] and all other: Ledger - l | other.node' = other.node
}
/** A topic of the same name, perhaps with ledgers of its own. */
pred topicIsBorn {
  no Owner.at and some Owner.at'
  Listed' in Young - Linked and Linked' = Linked + Listed'
  no Stale.knows' and no Remembered'
  Reborn' = (some Running + Withdrawn => TopicDeletion else Reborn)
}
/** The new owner loads the topic; the former one keeps it loaded (docs/decisions/0022-owners-of-bundles-are-asked.md). */
pred bundleMoves { some Owner.at and Stale.knows' = Owner.at and Remembered' = Listed }
pred staleWrites {
  some Stale.knows and (Stale.knows = Owner.at or writesAtAnyVersion)
  ownerChanges and Listed' = Remembered and Stale.knows' = Owner.at' and Remembered' = Remembered
}
/** Undelete. */
pred bringsBack[l: Ledger] {
  no l.node and some l.kept and some l.node' and all other: Ledger - l | other.node' = other.node
  DeletedByUs' = DeletedByUs - l
}

// --- the first phase -------------------------------------------------------------------------------------------------

pred marks[r: Record] {
  no r.stage and stage' = stage + r->Marked
  marked' = (r.kind = Cas => marked + r->Owner.at else marked)
  r.kind = Cas implies some Owner.at
  r.kind = Operation implies some Running and no Reborn and r.subject in Listed
}
pred sends[r: Record, m: Message] {
  r.stage = Marked and stage' = stage ++ r->Sent and publishesAnew[m, r]
  listFirst and r.kind in Cas + Plain implies r in Unlinked
}
pred sendsTwice[r: Record, m: Message] { r.stage = Sent and publishesAnew[m, r] }
/** One write takes every ledger off the list whose record was sent; Cas by compare-and-set. */
pred shrinks {
  ownerChanges and Listed' in Listed and some Listed - Listed'
  let ready = { r: Record | r.kind in Cas + Plain and r.stage = (listFirst => Marked else Sent)
                  and (r.kind = Cas implies r.marked = Owner.at) },
      gone = { r: ready | r.subject in Listed - Listed' } {
    Listed - Listed' in gone.subject
    stage' = (listFirst => stage else stage ++ gone->Over)
    Unlinked' = Unlinked + gone
  }
}
/** It has nothing left to do, gives up, or dies. */
pred markerEnds[r: Record] { some r.stage & (Marked + Sent) and stage' = stage ++ r->Over }
/** A2. */
pred windowEnds[m: Message] {
  m in SeenInUse & Waiting - WindowOver and WindowOver' = WindowOver + m
  (m.about.kind = Plain implies m.about.stage = Over)
  (m.about.kind = Operation implies no BrokerAtWork)
}
pred operationBegins { no Running + Withdrawn and some Owner.at and some Running' and no Withdrawn' }
/** Everything that the node references was recorded. */
pred brokerIsAsked {
  some Running and some Owner.at and no Reborn and some BrokerAtWork'
  Listed in { r: Record | r.kind = Operation and some r.stage & (Sent + Over) }.subject
}
/** Brokers delete a topic's ledgers themselves, whatever their version, before and after they remove its node. */
pred brokerDeletesLedger[l: Ledger] {
  some BrokerAtWork and l in Linked and some l.node and node' = node - l->Version
}
pred brokerRemovesTopic {
  some BrokerAtWork and some Owner.at and no Owner.at' and no Listed'
  Unlinked' = Unlinked + { r: Record | r.kind = Operation and r.stage = Sent and r.subject in Listed }
}
pred brokerStops { some BrokerAtWork and no BrokerAtWork' }
/** The topic is gone, or a broker refuses; an earlier request, whose answer was lost, may still be at work. */
pred operationEnds { some Running and no Running' and some Withdrawn' }

// --- the second phase ------------------------------------------------------------------------------------------------

fun of[c: Consumer]: Record { c.held.about }

/** A message is delivered, perhaps to several consumers. Read first: the ledger's node, the operation's, the clock. */
pred looks[c: Consumer, m: Message] {
  no c.phase and c.phase' = Looked and m in Waiting and c.held' = m
  no c.sawOwner' and no c.verdict' and c not in SawReference'
  c.sawLedger' = m.about.subject.node
  c in SawRunning' iff (m.about.kind = Operation and some Running)
  c in SawYoung' iff m.about.subject in Young
  c in SawWindowOver' iff m in WindowOver
}
/** Then the node that could reference it. */
pred compares[c: Consumer] {
  c.phase = Looked and c.phase' = Compared and c.sawOwner' = Owner.at
  c in SawReference' iff (c.of.subject in Listed and not noInUseCheck)
}
pred isYoung[c: Consumer] { not noAgeCheck and (clockReadLast => c.of.subject in Young else c in SawYoung) }
pred windowIsOver[c: Consumer] { clockReadLast => c.held in WindowOver else c in SawWindowOver }

/** "Delete": the judgement, with the version and the bytes, is on the outcome topic first. */
pred judges[c: Consumer] {
  c.phase = Compared and c.phase' = Judged
  some c.sawLedger and c.of not in Forged and c not in SawReference and not isYoung[c]
  kept' = (judgementNotKept => kept else kept + c.of.subject->c.sawLedger)
}
/** docs/decisions/0002-in-use-is-final.md. */
pred inUseIsFinal[c: Consumer] {
  inUseIsFinalAtOnce or c.of.kind = Unreferenced
  or (c.of.kind = Cas and some c.sawOwner & version/nexts[c.of.marked])
  or (c.of.kind in Plain + Operation and windowIsOver[c])
}
/** Every verdict but "delete"; while the topic's deletion runs on the message is left for later, and no try counted. */
pred decides[c: Consumer] {
  c.phase = Compared
  (no c.sawLedger and c.verdict' = Gone and c.phase' = ToKeep)
  or (c.of in Forged and c.verdict' = Refused and c.phase' = ToKeep)
  or (c in SawRunning & SawReference and no c.phase')
  or (some c.sawLedger and c.of not in Forged and c in SawReference - SawRunning and c.verdict' = InUse
      and c.phase' = (inUseIsFinal[c] => ToKeep else ToSend))
}
/** Something cannot be read or written now, or the ledger is young: a try is counted. */
pred givesUpForNow[c: Consumer] {
  some c.phase & (Looked + Compared + Judged) and c.phase' = ToSend and no c.verdict'
}
pred asJudged[c: Consumer] {
  some c.of.subject.node
  noFence or (c.of.subject.node = c.sawLedger and (no c.sawOwner or Owner.at = c.sawOwner))
}
/** One transaction: this version of the ledger, while the owner's node is as it was read. A conflict: judge again. */
pred deletes[c: Consumer] {
  c.phase = Judged
  asJudged[c] => {
    node' = node - c.of.subject->Version and DeletedByUs' = DeletedByUs + c.of.subject
    c.phase' = ToKeep and c.verdict' = Deleted
  } else {
    node' = node and DeletedByUs' = DeletedByUs
    no c.of.subject.node => (c.phase' = ToKeep and c.verdict' = Gone) else no c.phase'
  }
}
/** reconsumeLater, or the dead-letter topic when the tries are used up. */
pred sendsAgain[c: Consumer] {
  c.phase = ToSend and c.phase' = ToKeep
  let m = c.held, next = Now.message {
    m in LastTry => {
      no next and c.verdict' = SentToDeadLetters and DeadLetter' = DeadLetter + m.about
    } else {
      some next and c.verdict' = SentAgain and DeadLetter' = DeadLetter and publishes[next, m.about]
      next in SeenInUse' iff (m in SeenInUse or c.verdict = InUse)
      next in WindowOver' iff m in WindowOver
    }
  }
}
pred keepsOutcome[c: Consumer] {
  c.phase = ToKeep and c.phase' = ToAcknowledge
  Ended' = (c.verdict in final => Ended + c.of else Ended)
}
pred acknowledges[c: Consumer] {
  Waiting' = Waiting - c.held
  (c.phase = ToAcknowledge and no c.phase')
  or (acknowledgeFirst and c.phase = ToKeep and c.held in Waiting and c.phase' = ToKeep)
}
/** A crash, a lost answer, a topic that takes no message: everything it knew is lost, its message is not. */
pred dies[c: Consumer] { some c.phase and no c.phase' }
/** An operator sends a dead letter back. */
pred redrives[r: Record, m: Message] { r in DeadLetter and DeadLetter' = DeadLetter - r and publishesAnew[m, r] }

// --- behaviours ------------------------------------------------------------------------------------------------------

pred start {
  no DeletedByUs and Linked = Listed
  no Stale.knows and no Remembered
  Listed + Young in node.Version and no Listed & Young
  no Owner.at implies no Listed
  no kept and no stage and no marked and no about and no phase
  no Unlinked + DeadLetter + Ended and no Running + Withdrawn + BrokerAtWork + Reborn
  no Waiting + LastTry + SeenInUse + WindowOver
  no held and no sawLedger and no sawOwner and no verdict
  no SawRunning + SawYoung + SawWindowOver + SawReference
}
pred step {
  frame
  let a = Now.action, c = Now.who, r = Now.record, m = Now.message, l = Now.target {
    a = Creates implies creates[l]
    a = Links implies links[l]
    a = GrowsUp implies growsUp[l]
    a = ChangesOwner implies ownerChanges
    a = ChangesLedger implies changesLedger[l]
    a = TopicIsBorn implies topicIsBorn
    a = BringsBack implies bringsBack[l]
    a = BundleMoves implies bundleMoves
    a = StaleWrites implies staleWrites
    a = Marks implies marks[r]
    a = Sends implies sends[r, m]
    a = SendsTwice implies sendsTwice[r, m]
    a = Shrinks implies shrinks
    a = MarkerEnds implies markerEnds[r]
    a = WindowEnds implies windowEnds[m]
    a = OperationBegins implies operationBegins
    a = BrokerIsAsked implies brokerIsAsked
    a = BrokerDeletesLedger implies brokerDeletesLedger[l]
    a = BrokerRemovesTopic implies brokerRemovesTopic
    a = BrokerStops implies brokerStops
    a = OperationEnds implies operationEnds
    a = Looks implies looks[c, m]
    a = Compares implies compares[c]
    a = Judges implies judges[c]
    a = Decides implies decides[c]
    a = GivesUpForNow implies givesUpForNow[c]
    a = Deletes implies deletes[c]
    a = SendsAgain implies sendsAgain[c]
    a = KeepsOutcome implies keepsOutcome[c]
    a = Acknowledges implies acknowledges[c]
    a = Dies implies dies[c]
    a = Redrives implies redrives[r, m]
  }
}
fact behaviours { start and always step }

// --- safety ----------------------------------------------------------------------------------------------------------

pred tellsDeletion[l: Ledger] { Now.action = KeepsOutcome and Now.who.verdict = Deleted and Now.who.of.subject = l }

/** M1: no consumer's deletion leaves a reference to a ledger that is gone. */
pred referencedStays { always no Listed & DeletedByUs }
/** M2: what is deleted is what was judged, version for version, and the judgement was durable before. */
pred judgedBefore {
  always (Now.action = Deletes and some Now.who.of.subject.node and some DeletedByUs' - DeletedByUs implies
    Now.who.of.subject.node = Now.who.sawLedger and Now.who.sawLedger in Now.who.of.subject.kept)
}
/** M3: unless a ledger is brought back, its deletion happens once and is told once. */
pred effectOnce {
  all l: Ledger | always (tellsDeletion[l] implies after always not tellsDeletion[l])
    or (eventually Now.action = BringsBack)
}
/** M4: a message is acknowledged only when its record has a durable end, or goes on in a copy. */
pred acknowledgedLast {
  always (Now.action = Acknowledges and Now.who.held in Waiting implies
    Now.who.of in Ended + DeadLetter or some (Waiting - Now.who.held) & about.(Now.who.of))
}
pred safe { referencedStays and judgedBefore and effectOnce and acknowledgedLast }

// --- liveness --------------------------------------------------------------------------------------------------------

/** Faults are finitely many; consumers, brokers, markers and clocks go on; topics take messages; tries are counted. */
pred fair {
  always Now.action != BringsBack
  eventually always Now.action not in Dies + GivesUpForNow + SendsTwice + Redrives + BrokerIsAsked
  eventually always (Now.action = SendsAgain implies Now.message in LastTry')
  all c: Consumer | always eventually no c.phase
  all c: Consumer | always (c.phase = ToSend implies eventually (c.phase != ToSend or some m: Message | free[m]))
  all m: Message | always (m in Waiting implies eventually (m not in Waiting or (Now.action = Looks and Now.message = m)))
  all m: Message | always (m in SeenInUse & Waiting implies eventually (m in WindowOver or m not in Waiting))
  all r: Record | always (some r.stage & (Marked + Sent) and r.kind = Plain implies eventually r.stage = Over)
  always eventually no Running + BrokerAtWork
}
/** M5: every accepted record ends: done, final with its reason, or on the dead-letter topic. */
pred everyRecordEnds {
  all r: Record | always (r.stage = Sent implies eventually r in Ended + DeadLetter)
  all m: Message | always eventually m not in Waiting
}
/** M6: what the first phase has taken off the list goes, or waits on the dead-letter topic. */
pred nothingIsLeft {
  all r: Record - Forged | always (r in Unlinked implies eventually (no r.subject.node or r in DeadLetter))
}
pred live { everyRecordEnds and nothingIsLeft }

// --- what is run -----------------------------------------------------------------------------------------------------
// A scope says how much there may be of everything, and how long a behaviour may be before it repeats. "expect 0": no
// counterexample, "expect 1": there is such a behaviour.

check safety { no Omitted implies safe }
  for 1 but 2 Message, 2 Consumer, 3 Version, 1 Int, exactly 10 steps expect 0
check liveness { no Omitted and fair implies live }
  for 1 but 2 Message, 2 Version, 1 Int, exactly 11 steps expect 0

// Every rule is needed.
run without_the_in_use_check { Omitted = Compares and not referencedStays }
  for 1 but 3 Version, 1 Int, exactly 7 steps expect 1
run with_the_list_shrunk_first { Omitted = Sends and fair and not nothingIsLeft }
  for 1 but 2 Version, 1 Int, exactly 5 steps expect 1
run without_the_fence { Omitted = Deletes and not judgedBefore }
  for 1 but 2 Version, 1 Int, exactly 8 steps expect 1
run without_the_age_check { Omitted = GrowsUp and not referencedStays }
  for 1 but 2 Version, 1 Int, exactly 8 steps expect 1
run with_a_writer_slower_than_the_age { Omitted = Links and not referencedStays }
  for 1 but 2 Version, 1 Int, exactly 8 steps expect 1
run with_a_stale_broker_that_compares_no_version { Omitted = StaleWrites and not referencedStays }
  for 1 but 3 Version, 1 Int, exactly 10 steps expect 1
run with_the_clock_read_last { Omitted = Looks and not referencedStays }
  for 1 but 2 Version, 1 Int, exactly 9 steps expect 1
run with_the_message_acknowledged_first { Omitted = Acknowledges and not acknowledgedLast }
  for 1 but 2 Version, 1 Int, exactly 8 steps expect 1
run with_the_judgement_not_kept { Omitted = Judges and not judgedBefore }
  for 1 but 2 Version, 1 Int, exactly 7 steps expect 1
run with_in_use_final_at_the_first_look { Omitted = Decides and fair and not nothingIsLeft }
  for 1 but 2 Version, 1 Int, exactly 9 steps expect 1

// What should be possible is.
run judges_again_after_a_stale_broker_s_write {
  no Omitted
  eventually (Now.action = StaleWrites and Consumer.phase = Judged)
  eventually some DeletedByUs
} for 1 but 2 Version, 1 Int, exactly 13 steps expect 1
run deletes_what_a_topic_deletion_left {
  no Omitted and Operation in Record.kind and eventually some Unlinked and eventually some Withdrawn
  eventually (some l: Ledger | tellsDeletion[l]) and eventually always no Waiting
} for 1 but 2 Version, 1 Int, exactly 13 steps expect 1
run goes_on_after_a_crash {
  no Omitted
  eventually (Now.action = Dies and Now.who.verdict = Deleted)
  eventually (Now.action = KeepsOutcome and Now.who.verdict = Gone)
  eventually (no Waiting and some Ended)
} for 1 but 2 Version, 1 Int, exactly 13 steps expect 1
run judges_again_after_a_conflict {
  no Omitted
  eventually (Now.action = Deletes and no Now.who.phase')
  eventually some DeletedByUs
} for 1 but 2 Version, 1 Int, exactly 12 steps expect 1
run two_consumers_and_one_effect {
  no Omitted
  eventually (Consumer.phase = Judged)
  eventually (Consumer.phase = ToKeep and some c: Consumer | c.verdict = Deleted and (Consumer - c).verdict = Gone)
} for 1 but exactly 2 Consumer, 2 Version, 1 Int, exactly 11 steps expect 1
run keeps_what_is_in_use {
  no Omitted and Cas in Record.kind
  eventually (Now.action = KeepsOutcome and Now.who.verdict = InUse)
  always no Young
} for 1 but 2 Version, 1 Int, exactly 9 steps expect 1
run gives_up_and_is_sent_back {
  no Omitted
  eventually some DeadLetter and eventually (Now.action = Redrives)
} for 1 but 2 Message, 2 Version, 1 Int, exactly 12 steps expect 1
