// What Terraform's provider for RabbitMQ does, by the library it does it with (rabbit-hole): every resource is made, read
// back, changed, and deleted, and must be as it was written. Arguments: the URL of the HTTP API. Prints the resources
// that are right, one to a line; ends with status 1 and the reason at the first that is not.
package main

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strings"

	rabbithole "github.com/michaelklishin/rabbit-hole/v2"
)

const vhost = "terra/form"

func check(what string, response *http.Response, err error) {
	if err == nil && response != nil && response.StatusCode >= 400 {
		err = fmt.Errorf("status %s", response.Status)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func same(what string, found, wanted any) {
	if !reflect.DeepEqual(found, wanted) {
		fmt.Fprintf(os.Stderr, "%s: %#v, not %#v\n", what, found, wanted)
		os.Exit(1)
	}
}

func gone(what string, err error) {
	answer, ok := err.(rabbithole.ErrorResponse)
	if !ok || answer.StatusCode != 404 {
		fmt.Fprintf(os.Stderr, "%s is still there: %v\n", what, err)
		os.Exit(1)
	}
	fmt.Println(what)
}

func access(client *rabbithole.Client) {
	about := rabbithole.VhostSettings{Description: "made by code", Tags: rabbithole.VhostTags{"infrastructure", "test"}}
	response, err := client.PutVhost(vhost, about)
	check("make a vhost", response, err)
	found, err := client.GetVhost(vhost)
	check("read a vhost", nil, err)
	same("vhost", found.Name, vhost)
	same("description of a vhost", found.Description, about.Description)
	same("tags of a vhost", found.Tags, about.Tags)

	settings := rabbithole.UserSettings{Password: "sesame", Tags: rabbithole.UserTags{"management", "monitoring"}}
	response, err = client.PutUser("ann", settings)
	check("make a user", response, err)
	user, err := client.GetUser("ann")
	check("read a user", nil, err)
	same("tags of a user", user.Tags, settings.Tags)

	rights := rabbithole.Permissions{Configure: ".*", Write: "^a", Read: ""}
	response, err = client.UpdatePermissionsIn(vhost, "ann", rights)
	check("set permissions", response, err)
	row, err := client.GetPermissionsIn(vhost, "ann")
	check("read permissions", nil, err)
	same("permissions", [3]string{row.Configure, row.Write, row.Read}, [3]string{".*", "^a", ""})

	for _, exchange := range []string{"amq.topic", "x"} {
		topics := rabbithole.TopicPermissions{Exchange: exchange, Write: "^a", Read: "^b"}
		response, err = client.UpdateTopicPermissionsIn(vhost, "ann", topics)
		check("set topic permissions", response, err)
	}
	response, err = client.DeleteTopicPermissionsIn(vhost, "ann", "x")
	check("delete one of them", response, err)
	topics, err := client.GetTopicPermissionsIn(vhost, "ann")
	check("read topic permissions", nil, err)
	same("topic permissions", len(topics), 1)
	same("the one that is left", topics[0].Exchange, "amq.topic")
}

func topology(client *rabbithole.Client) {
	arguments := map[string]interface{}{"x-max-length": float64(100)}
	response, err := client.DeclareQueue(vhost, "q/1", rabbithole.QueueSettings{Durable: true, Arguments: arguments})
	check("declare a queue", response, err)
	queue, err := client.GetQueue(vhost, "q/1")
	check("read a queue", nil, err)
	same("queue", []any{queue.Name, queue.Vhost, queue.Durable}, []any{"q/1", vhost, true})
	same("arguments of a queue", queue.Arguments, arguments)

	response, err = client.DeclareExchange(vhost, "x", rabbithole.ExchangeSettings{Type: "topic", Durable: true})
	check("declare an exchange", response, err)
	exchange, err := client.GetExchange(vhost, "x")
	check("read an exchange", nil, err)
	same("exchange", []any{exchange.Type, exchange.Durable, exchange.AutoDelete}, []any{"topic", true, false})

	for _, key := range []string{"a.#", ""} {
		binding := rabbithole.BindingInfo{
			Source: "x", Destination: "q/1", DestinationType: "queue", RoutingKey: key,
			Arguments: map[string]interface{}{"one": "two"},
		}
		response, err = client.DeclareBinding(vhost, binding)
		check("bind", response, err)
		place := strings.Split(response.Header.Get("Location"), "/")
		same("the way to a binding", len(place), 2)
		binding.PropertiesKey, err = url.PathUnescape(place[1])
		check("read the key of a binding", nil, err)
		rows, err := client.ListQueueBindingsBetween(vhost, "x", "q/1")
		check("list bindings", nil, err)
		same("bindings", len(rows), 1)
		same("binding", []any{rows[0].PropertiesKey, rows[0].RoutingKey}, []any{binding.PropertiesKey, key})
		response, err = client.DeleteBinding(vhost, binding)
		check("unbind", response, err)
		rows, err = client.ListQueueBindingsBetween(vhost, "x", "q/1")
		check("list bindings", nil, err)
		same("bindings that are left", len(rows), 0)
	}
	fmt.Println("binding")
}

func policies(client *rabbithole.Client) {
	policy := rabbithole.Policy{
		Pattern: "^q", ApplyTo: "queues", Priority: 3, Definition: rabbithole.PolicyDefinition{"max-length": float64(9)},
	}
	response, err := client.PutPolicy(vhost, "p", policy)
	check("set a policy", response, err)
	found, err := client.GetPolicy(vhost, "p")
	check("read a policy", nil, err)
	same("policy", []any{found.Pattern, found.ApplyTo, found.Priority}, []any{"^q", "queues", 3})
	same("definition of a policy", found.Definition, policy.Definition)

	bound := rabbithole.OperatorPolicy{
		Pattern: "^q", ApplyTo: "queues", Definition: rabbithole.PolicyDefinition{"max-length": float64(5)},
	}
	response, err = client.PutOperatorPolicy(vhost, "o", bound)
	check("set an operator policy", response, err)
	operator, err := client.GetOperatorPolicy(vhost, "o")
	check("read an operator policy", nil, err)
	same("operator policy", operator.Definition, bound.Definition)

	response, err = client.PutVhostLimits(vhost, rabbithole.VhostLimitsValues{"max-queues": 7})
	check("limit a vhost", response, err)
	limits, err := client.GetVhostLimits(vhost)
	check("read limits", nil, err)
	same("limits", limits[0].Value["max-queues"], 7)

	upstream := rabbithole.FederationDefinition{Uri: rabbithole.URISet{"amqp://elsewhere"}, PrefetchCount: 10}
	response, err = client.PutFederationUpstream(vhost, "up", upstream)
	check("keep an upstream", response, err)
	kept, err := client.GetFederationUpstream(vhost, "up")
	check("read an upstream", nil, err)
	same("upstream", kept.Definition.PrefetchCount, 10)
	response, err = client.DeleteFederationUpstream(vhost, "up")
	check("forget an upstream", response, err)
	fmt.Println("parameter")
}

func end(client *rabbithole.Client) {
	response, err := client.DeletePolicy(vhost, "p")
	check("delete a policy", response, err)
	_, err = client.GetPolicy(vhost, "p")
	gone("policy", err)
	response, err = client.DeleteOperatorPolicy(vhost, "o")
	check("delete an operator policy", response, err)
	_, err = client.GetOperatorPolicy(vhost, "o")
	gone("operator policy", err)
	response, err = client.DeleteQueue(vhost, "q/1")
	check("delete a queue", response, err)
	_, err = client.GetQueue(vhost, "q/1")
	gone("queue", err)
	response, err = client.DeleteExchange(vhost, "x")
	check("delete an exchange", response, err)
	_, err = client.GetExchange(vhost, "x")
	gone("exchange", err)
	response, err = client.ClearPermissionsIn(vhost, "ann")
	check("clear permissions", response, err)
	_, err = client.GetPermissionsIn(vhost, "ann")
	gone("permissions", err)
	response, err = client.DeleteUser("ann")
	check("delete a user", response, err)
	_, err = client.GetUser("ann")
	gone("user", err)
	response, err = client.DeleteVhost(vhost)
	check("delete a vhost", response, err)
	_, err = client.GetVhost(vhost)
	gone("vhost", err)
}

func main() {
	client, err := rabbithole.NewClient(os.Args[1], "guest", "guest")
	check("make a client", nil, err)
	overview, err := client.Overview()
	check("read the overview", nil, err)
	fmt.Println("overview of", overview.ManagementVersion)
	access(client)
	topology(client)
	policies(client)
	end(client)
}
