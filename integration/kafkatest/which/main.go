// Command which says which Kafka the tests run on, or why there is none.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kafkafence/persistence/integration/kafkatest"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c, err := kafkatest.New(ctx)
	if err != nil {
		fmt.Println("the tests on a real Kafka did NOT run:", err)
		return
	}
	fmt.Printf("the tests on a real Kafka ran on Kafka %s from %s\n", c.Version(), c.Backend())
	if err := c.Close(); err != nil {
		fmt.Println(err)
	}
}
