// The Go admin client, of which pulsarctl and the Terraform provider are made.
//
//	admin-calls calls URL TOKEN TENANT          25 calls, one after the other
//	admin-calls concurrently URL TOKEN TENANT   50 namespaces made, read, changed and deleted at once
//
// A line of JSON for each call: its name, what it answered, how it failed.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

const atOnce = 50

type line struct {
	Call   string `json:"call"`
	Answer any    `json:"answer"`
	Error  string `json:"error"`
}

var writing sync.Mutex

func report(call string, answer any, failure error) {
	written := line{Call: call, Answer: answer}
	if failure != nil {
		written.Answer, written.Error = nil, failure.Error()
	}
	text, err := json.Marshal(written)
	must(err)
	writing.Lock()
	defer writing.Unlock()
	fmt.Println(string(text))
}

func must(failure error) {
	if failure != nil {
		fmt.Fprintln(os.Stderr, failure)
		os.Exit(1)
	}
}

func main() {
	admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: os.Args[2], Token: os.Args[3]})
	must(err)
	if os.Args[1] == "calls" {
		calls(admin, os.Args[4])
		return
	}
	concurrently(admin, os.Args[4])
}

func topicOf(tenant, name string) utils.TopicName {
	topic, err := utils.GetTopicName("persistent://" + tenant + "/" + name)
	must(err)
	return *topic
}

func calls(admin pulsaradmin.Client, tenant string) {
	name, err := utils.GetNameSpaceName(tenant, "go")
	must(err)
	namespace := name.String()
	plain, parted := topicOf(tenant, "go/plain"), topicOf(tenant, "go/parted")
	nothing := func(call string, failure error) { report(call, nil, failure) }

	clusters, err := admin.Clusters().List()
	report("clusters list", clusters, err)
	tenantData, err := admin.Tenants().Get(tenant)
	report("tenants get", tenantData, err)
	nothing("namespaces create", admin.Namespaces().CreateNamespace(namespace))
	nothing("namespaces create again", admin.Namespaces().CreateNamespace(namespace))
	nothing("set-message-ttl", admin.Namespaces().SetNamespaceMessageTTL(namespace, 60))
	policies, err := admin.Namespaces().GetPolicies(namespace)
	report("policies", policies, err)
	nothing("set-retention", admin.Namespaces().SetRetention(namespace, utils.NewRetentionPolicies(60, 10)))
	retention, err := admin.Namespaces().GetRetention(namespace)
	report("get-retention", retention, err)
	nothing("grant", admin.Namespaces().GrantNamespacePermission(*name, "reader", []utils.AuthAction{"consume"}))
	permissions, err := admin.Namespaces().GetNamespacePermissions(*name)
	report("permissions", permissions, err)
	nothing("topics create", admin.Topics().Create(plain, 0))
	nothing("topics create partitioned", admin.Topics().Create(parted, 3))
	partitioned, others, err := admin.Topics().List(*name)
	report("topics list", []int{len(partitioned), len(others)}, err)
	metadata, err := admin.Topics().GetMetadata(parted)
	report("topics metadata", metadata, err)
	nothing("topics update", admin.Topics().Update(parted, 4))
	nothing("subscriptions create", admin.Subscriptions().Create(plain, "reading", utils.Earliest))
	subscriptions, err := admin.Subscriptions().List(plain)
	report("subscriptions list", subscriptions, err)
	stats, err := admin.Topics().GetStats(plain)
	report("stats", len(stats.Publishers), err)
	_, err = admin.Topics().GetStats(topicOf(tenant, "go/none"))
	nothing("stats of none", err)
	_, err = admin.Topics().Lookup(plain)
	nothing("lookup", err)
	nothing("topics delete", admin.Topics().Delete(plain, false, true))
	nothing("topics delete again", admin.Topics().Delete(plain, false, true))
	nothing("topics delete partitioned", admin.Topics().Delete(parted, false, false))
	nothing("namespaces delete", admin.Namespaces().DeleteNamespace(namespace))
	nothing("namespaces delete again", admin.Namespaces().DeleteNamespace(namespace))
}

func concurrently(admin pulsaradmin.Client, tenant string) {
	var running sync.WaitGroup
	for number := range atOnce {
		running.Add(1)
		go func() {
			defer running.Done()
			answer, failure := applied(admin, tenant, fmt.Sprintf("go-%02d", number))
			report(fmt.Sprintf("applied %02d", number), answer, failure)
		}()
	}
	running.Wait()
}

func applied(admin pulsaradmin.Client, tenant, name string) (any, error) {
	namespace, topic := tenant+"/"+name, topicOf(tenant, name+"/topic")
	if err := admin.Namespaces().CreateNamespace(namespace); err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	if err := admin.Namespaces().SetNamespaceMessageTTL(namespace, 60); err != nil {
		return nil, fmt.Errorf("set: %w", err)
	}
	ttl, err := admin.Namespaces().GetNamespaceMessageTTL(namespace)
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	if err := admin.Topics().Create(topic, 2); err != nil {
		return nil, fmt.Errorf("create topic: %w", err)
	}
	if err := admin.Topics().Delete(topic, false, false); err != nil {
		return nil, fmt.Errorf("delete topic: %w", err)
	}
	if err := admin.Namespaces().DeleteNamespace(namespace); err != nil {
		return nil, fmt.Errorf("delete: %w", err)
	}
	return ttl, nil
}
