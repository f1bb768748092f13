"""The commands of pulsar-admin that are run at a broker and at a sidecar, in their order.

Each line begins with what it is: ``r`` reads, ``w`` writes, ``e`` fails for a superuser too. ``~`` after it: the
response is never the same twice (rates, uptimes), and only its form is compared.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_ISOLATION = "--auto-failover-policy-type min_available --auto-failover-policy-params min_limit=1,usage_threshold=80"

_CLUSTER = """
r  clusters list
r  clusters get local
e  clusters get nowhere
w  clusters create extra-{side} --url http://127.0.0.1:1 --broker-url pulsar://127.0.0.1:1
e  clusters create extra-{side} --url http://127.0.0.1:1 --broker-url pulsar://127.0.0.1:1
w  clusters update extra-{side} --url http://127.0.0.1:2 --broker-url pulsar://127.0.0.1:2
r  clusters get extra-{side}
r  clusters get-peer-clusters local
w  clusters create-failure-domain local --domain-name domain --broker-list broker-9
r  clusters get-failure-domain local --domain-name domain
r  clusters list-failure-domains local
w  clusters delete-failure-domain local --domain-name domain
w  clusters delete extra-{side}
r  brokers list local
r  brokers leader-broker
r~ brokers namespaces local --url {broker}
r  brokers list-dynamic-config
w  brokers update-dynamic-config --config dispatchThrottlingRatePerTopicInMsg --value 0
r  brokers get-all-dynamic-config
w  brokers delete-dynamic-config --config dispatchThrottlingRatePerTopicInMsg
e  brokers update-dynamic-config --config unheardOf --value 0
r  brokers get-internal-config
r~ brokers get-runtime-config
r  brokers healthcheck
r  brokers version
r  brokers backlog-quota-check
r  bookies list-bookies
r  bookies racks-placement
w  bookies set-bookie-rack --group default --bookie 127.0.0.1:9 --rack /rack --hostname host
r  bookies get-bookie-rack --bookie 127.0.0.1:9
w  bookies delete-bookie-rack --bookie 127.0.0.1:9
r~ broker-stats monitoring-metrics
r~ broker-stats mbeans
r~ broker-stats load-report
r~ broker-stats allocator-stats default
r  resource-quotas get
w  ns-isolation-policy set local policy --namespaces {tenant}/.* --primary none.* {isolation}
r  ns-isolation-policy get local policy
r  ns-isolation-policy list local
r  ns-isolation-policy brokers local
w  ns-isolation-policy delete local policy
e  ns-isolation-policy get local policy
r  resourcegroups list
e  transactions coordinator-stats
e  functions list --tenant {tenant} --namespace ready
e  functions create --jar {file} --className none --tenant {tenant} --namespace ready --name none --inputs a --output b
e  sinks list --tenant {tenant} --namespace ready
r  tenants list
r  tenants get {tenant}
w  tenants create {tenant}-more --allowed-clusters local --admin-roles one
e  tenants create {tenant}-more
w  tenants update {tenant}-more --admin-roles two
r  tenants get {tenant}-more
w  tenants delete {tenant}-more
e  tenants get {tenant}-more
"""

_NAMESPACES = """
r  namespaces list {tenant}
w  namespaces create {tenant}/work
e  namespaces create {tenant}/work
e  namespaces create none/many
w  namespaces create {tenant}/many --bundles 4
r  namespaces policies {tenant}/work
r  namespaces bundles {tenant}/many
w  namespaces set-retention {tenant}/work --size 10M --time 1h
r  namespaces get-retention {tenant}/work
w  namespaces remove-retention {tenant}/work
w  namespaces set-message-ttl {tenant}/work --messageTTL 100
r  namespaces get-message-ttl {tenant}/work
w  namespaces remove-message-ttl {tenant}/work
w  namespaces set-backlog-quota {tenant}/work --limit 10M --policy producer_exception
r  namespaces get-backlog-quotas {tenant}/work
w  namespaces remove-backlog-quota {tenant}/work
w  namespaces set-persistence {tenant}/work -e 1 -w 1 -a 1 -r 0
r  namespaces get-persistence {tenant}/work
w  namespaces set-dispatch-rate {tenant}/work --msg-dispatch-rate 1000
r  namespaces get-dispatch-rate {tenant}/work
w  namespaces set-publish-rate {tenant}/work --msg-publish-rate 1000
r  namespaces get-publish-rate {tenant}/work
w  namespaces set-deduplication {tenant}/work --enable
r  namespaces get-deduplication {tenant}/work
w  namespaces set-auto-topic-creation {tenant}/work --enable --type partitioned --num-partitions 2
r  namespaces get-auto-topic-creation {tenant}/work
w  namespaces grant-permission {tenant}/work --role reader --actions consume
r  namespaces permissions {tenant}/work
w  namespaces revoke-permission {tenant}/work --role reader
w  namespaces set-clusters {tenant}/work --clusters local
e  namespaces set-clusters {tenant}/work --clusters nowhere
r  namespaces get-clusters {tenant}/work
w  namespaces set-schema-compatibility-strategy {tenant}/work --compatibility FULL
r  namespaces get-schema-compatibility-strategy {tenant}/work
w  namespaces set-max-producers-per-topic {tenant}/work --max-producers-per-topic 3
r  namespaces get-max-producers-per-topic {tenant}/work
w  namespaces set-property {tenant}/work --key one --value "two words"
r  namespaces get-properties {tenant}/work
w  namespaces set-delayed-delivery {tenant}/work --enable --time 1s
r  namespaces get-delayed-delivery {tenant}/work
e  namespaces get-retention {tenant}/none
e  namespaces policies none/none
w  namespaces unload {tenant}/ready
r  namespaces topics {tenant}/ready
w  namespaces delete {tenant}/work
e  namespaces delete {tenant}/work
e  namespaces delete {tenant}/ready
"""

_TOPICS = """
r  topics list {tenant}/ready
r  topics list-partitioned-topics {tenant}/ready
w  topics create {ready}/made
e  topics create {ready}/made
w  topics create {ready}/a%2Fb+c
r  topics stats-internal {ready}/a%2Fb+c
w  topics delete {ready}/a%2Fb+c
w  topics create-partitioned-topic {ready}/parts --partitions 3
e  topics create-partitioned-topic {ready}/parts --partitions 3
r  topics get-partitioned-topic-metadata {ready}/parts
w  topics update-partitioned-topic {ready}/parts --partitions 4
e  topics update-partitioned-topic {ready}/parts --partitions 2
w  topics create-missed-partitions {ready}/parts
r  topics stats {ready}/plain
r  topics stats-internal {ready}/plain
r  topics info-internal {ready}/plain
r  topics partitioned-stats {ready}/parted --per-partition
r  topics partitioned-stats-internal {ready}/parted
e  topics stats {ready}/none
e  topics stats persistent://{tenant}/none/none
e  topics terminate {ready}/parted
w  topics create-subscription {ready}/plain --subscription made --messageId earliest
e  topics create-subscription {ready}/plain --subscription made
r  topics subscriptions {ready}/plain
w  topics skip {ready}/plain --subscription made --count 1
w  topics reset-cursor {ready}/plain --subscription made --time 1h
w  topics expire-messages {ready}/plain --subscription made --expireTime 3600
w  topics clear-backlog {ready}/plain --subscription made
w  topics unsubscribe {ready}/plain --subscription made
e  topics unsubscribe {ready}/plain --subscription none
e  topics unsubscribe {ready}/plain --subscription none --force
r  topics peek-messages {ready}/plain --subscription reading --count 2
r  topics examine-messages {ready}/plain --initialPosition earliest --messagePosition 1
r  topics get-message-by-id {ready}/plain --ledgerId {ledger} --entryId 1
e  topics get-message-by-id {ready}/plain --ledgerId {ledger} --entryId 99
r  topics last-message-id {ready}/plain
r  topics analyze-backlog {ready}/plain --subscription reading
r  topics lookup {ready}/plain
r  topics partitioned-lookup {ready}/parted
r  topics bundle-range {ready}/plain
w  topics grant-permission {ready}/plain --role reader --actions produce
r  topics permissions {ready}/plain
w  topics revoke-permission {ready}/plain --role reader
w  topics update-properties {ready}/made --property a=b
r  topics get-properties {ready}/made
w  topics remove-properties {ready}/made --key a
w  topics compact {ready}/plain
r  topics compaction-status --wait-complete {ready}/plain
r  topics offload-status {ready}/plain
w  topicPolicies set-retention {ready}/plain --size 1M --time 1h
r  topicPolicies get-retention {ready}/plain
w  topicPolicies remove-retention {ready}/plain
w  topicPolicies set-message-ttl {ready}/plain --ttl 100
r  topicPolicies get-message-ttl {ready}/plain
w  topicPolicies set-max-consumers {ready}/plain --max-consumers 5
r  topicPolicies get-max-consumers {ready}/plain
w  schemas upload {ready}/made --filename {schema}
r  schemas get {ready}/made
r  schemas get {ready}/made --version 0
r  schemas compatibility {ready}/made --filename {schema}
w  schemas delete {ready}/made
w  schemas delete {ready}/made --force
e  schemas get {ready}/made
w  packages upload function://{tenant}/ready/code@v1 --path {file} --description words
r  packages get-metadata function://{tenant}/ready/code@v1
r  packages list-versions function://{tenant}/ready/code
w  packages update-metadata function://{tenant}/ready/code@v1 --description others
r  packages list --type function {tenant}/ready
r  packages download function://{tenant}/ready/code@v1 --path {downloaded}
w  packages delete function://{tenant}/ready/code@v1
e  packages get-metadata function://{tenant}/ready/code@v1
w  topics unload {ready}/plain
w  topics terminate {ready}/made
w  topics truncate {ready}/plain
w  topics create non-persistent://{tenant}/ready/fleeting
r  topics stats non-persistent://{tenant}/ready/fleeting
w  topics delete non-persistent://{tenant}/ready/fleeting
e  topics delete {ready}/parted
w  topics delete {ready}/made
e  topics delete {ready}/made
w  topics delete-partitioned-topic {ready}/parts
e  topics delete-partitioned-topic {ready}/parts
w  topics delete {ready}/plain --force
w  namespaces delete {tenant}/many
w  namespaces delete {tenant}/ready --force
e  namespaces topics {tenant}/ready
e  topics list none/none
e  resourcegroups get none
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A command; ``template`` has the fields of `preparing.Scene`."""

    template: str
    writes: bool
    fails: bool
    form_only: bool

    def arguments(self, fields: dict[str, object]) -> list[str]:
        return shlex.split(self.template.format(**fields, isolation=_ISOLATION))


def _command(line: str) -> Command:
    kind, _, template = line.partition(" ")
    return Command(template.strip(), "w" in kind, "e" in kind, "~" in kind)


COMMANDS: Sequence[Command] = tuple(_command(line) for line in (_CLUSTER + _NAMESPACES + _TOPICS).splitlines() if line)
